//! Random interleavings: a dispatcher always reads the bytes that were last written, and the host
//! never sees two accesses to a line at the same time of which one is a write.

use std::cell::RefCell;

use loch_fabric::lanes::{block_on, run};

use super::*;
use crate::kv_direct::reference::{self, Random, Reference, line_of, pending, random, up_to};
use crate::kv_direct::storage::Storage;
use crate::lines::Near;

/// Accesses to a line under way.
#[derive(Clone, Copy, Default)]
struct UnderWay {
    reads: u32,
    /// Writes of each half.
    writes: [bool; 2],
}

/// Host memory whose accesses are pending a random number of times, and that checks invariant 2.
struct Jittery {
    random: Random,
    lines: RefCell<Vec<Line>>,
    under_way: RefCell<Vec<UnderWay>>,
    /// Lines whose hash is below this are accessed by one operation at a time.
    strict_below: u64,
    counts: Cell<Counts>,
}

impl Jittery {
    fn new(random: &Random, lines: u32, strict_ratio: f64) -> Self {
        Self {
            random: random.clone(),
            lines: RefCell::new(vec![Line::ZERO; lines as usize]),
            under_way: RefCell::new(vec![UnderWay::default(); lines as usize]),
            strict_below: (strict_ratio * (1u64 << 32) as f64) as u64,
            counts: Cell::default(),
        }
    }

    fn begin_read(&self, at: u32, lines: usize) {
        for line in at..at + lines as u32 {
            let way = &mut self.under_way.borrow_mut()[line as usize];
            let strict = u64::from(mix(line)) < self.strict_below;
            let others = if strict {
                way.writes != [false; 2] || way.reads > 0
            } else {
                way.writes == [true; 2]
            };
            assert!(!others, "a read of a line beside a write");
            way.reads += 1;
        }
    }

    fn begin_write(&self, line: u32, halves: &[usize]) {
        let way = &mut self.under_way.borrow_mut()[line as usize];
        let strict = u64::from(mix(line)) < self.strict_below || halves.len() == 2;
        let others = strict && (way.reads > 0 || way.writes != [false; 2]);
        assert!(!others && halves.iter().all(|half| !way.writes[*half]), "two writes at once");
        halves.iter().for_each(|half| way.writes[*half] = true);
    }

    fn end_write(&self, line: u32, halves: &[usize]) {
        let way = &mut self.under_way.borrow_mut()[line as usize];
        halves.iter().for_each(|half| way.writes[*half] = false);
    }
}

impl HostMemory for Jittery {
    fn lines(&self) -> u32 {
        self.lines.borrow().len() as u32
    }

    async fn read_line(&self, purpose: Purpose, at: u32) -> Line {
        let mut line = [Line::ZERO];
        self.read(purpose, at, &mut line).await;
        line[0]
    }

    async fn write_line(&self, purpose: Purpose, at: u32, line: &Line) {
        self.write(purpose, at, std::slice::from_ref(line)).await;
    }

    async fn write_half(&self, _: Purpose, half: u32, bytes: &[u8; HALF_BYTES]) {
        let (line, part) = (half / 2, half as usize % 2);
        self.begin_write(line, &[part]);
        let at = part * HALF_BYTES;
        self.lines.borrow_mut()[line as usize].0[at..at + HALF_BYTES].copy_from_slice(bytes);
        pending(up_to(&self.random, 5)).await;
        self.end_write(line, &[part]);
    }

    async fn read(&self, _: Purpose, at: u32, into: &mut [Line]) {
        self.begin_read(at, into.len());
        pending(up_to(&self.random, 5)).await;
        let lines = at as usize..at as usize + into.len();
        into.copy_from_slice(&self.lines.borrow()[lines.clone()]);
        pending(up_to(&self.random, 5)).await;
        self.under_way.borrow_mut()[lines].iter_mut().for_each(|way| way.reads -= 1);
    }

    async fn write(&self, _: Purpose, at: u32, from: &[Line]) {
        let lines = at..at + from.len() as u32;
        lines.clone().for_each(|line| self.begin_write(line, &[0, 1]));
        // The write is posted at once, and may be seen at once.
        self.lines.borrow_mut()[at as usize..at as usize + from.len()].copy_from_slice(from);
        pending(up_to(&self.random, 5)).await;
        lines.for_each(|line| self.end_write(line, &[0, 1]));
    }

    fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn peek(&self, at: u32) -> Line {
        self.lines.borrow()[at as usize]
    }

    async fn exchange(&self, _: bool, _: usize) {}
}

/// Memory of the card whose accesses are pending a random number of times.
struct JitteryDram {
    random: Random,
    local: LocalDram<Vec<Line>>,
}

impl NicDram for JitteryDram {
    fn slots(&self) -> u32 {
        self.local.slots()
    }

    async fn read(&self, slot: u32) -> (Mark, Line) {
        pending(up_to(&self.random, 4)).await;
        let held = self.local.peek(slot);
        pending(up_to(&self.random, 4)).await;
        held
    }

    async fn write(&self, slot: u32, mark: Mark, line: &Line) {
        // At any moment before it is posted.
        pending(up_to(&self.random, 4)).await;
        self.local.write(slot, mark, line).await;
        pending(up_to(&self.random, 4)).await;
    }

    fn peek(&self, slot: u32) -> (Mark, Line) {
        self.local.peek(slot)
    }
}

#[track_caller]
fn check(seed: u64, lines: u32, slots: u32, ratio: f64, width: usize) -> Dispatched {
    let random = random(seed);
    let dram = JitteryDram {
        random: random.clone(),
        local: LocalDram::new(vec![Line::ZERO; slots as usize]),
    };
    let memory = Dispatcher::new(Jittery::new(&random, lines, ratio), dram, ratio);
    let reference = Reference::new(lines);
    let mut done = 0;
    let work = (0..400).map(|_| reference.operate(&memory, &random));
    block_on(run(width, work, |one| done += one));
    assert!(done > 50, "{done} operations of seed {seed}");
    let lines = reference.lines();
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(memory.peek(at as u32), *line, "line {at} of seed {seed}");
    }
    let dispatched = memory.dispatched();
    block_on(memory.flush());
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(memory.host().peek(at as u32), *line, "line {at} of seed {seed}");
        assert_eq!(memory.peek(at as u32), *line);
    }
    dispatched
}

#[test]
fn what_is_read_was_last_written() {
    let mut all = Dispatched::default();
    for seed in 0..400 {
        let of = |salt: u64, values: &[u32]| values[(seed / salt % values.len() as u64) as usize];
        let lines = of(1, &[12, 40, 100]);
        let slots = of(3, &[1, 2, 5, 16]);
        let ratio = f64::from(of(12, &[100, 60, 30, 0])) / 100.0;
        let one = check(seed, lines, slots, ratio, of(48, &[1, 4, 24]) as usize);
        all.read_hits += one.read_hits;
        all.write_hits += one.write_hits;
        all.write_backs += one.write_backs;
    }
    assert!(all.read_hits > 500 && all.write_hits > 500 && all.write_backs > 500, "{all:?}");
}

fn local(
    lines: usize,
    slots: usize,
    ratio: f64,
) -> Dispatcher<Near<Vec<Line>>, LocalDram<Vec<Line>>> {
    let dram = LocalDram::new(vec![Line::ZERO; slots]);
    Dispatcher::new(Near::new(vec![Line::ZERO; lines]), dram, ratio)
}

#[test]
fn so_many_lines_are_cacheable() {
    for ratio in [0.0, 0.25, 0.6, 1.0] {
        let memory = local(1, 1, ratio);
        for (step, count) in [(1, 100_000), (8, 100_000), (4096, 100_000)] {
            let lines = (0..count).filter(|n| memory.is_cacheable(n * step)).count();
            let share = lines as f64 / f64::from(count);
            assert!((share - ratio).abs() < 0.01, "{share} of {ratio}, every {step}");
        }
    }
}

#[test]
fn accesses_are_counted_before_and_after_they_are_dispatched() {
    let memory = local(1000, 10, 0.5);
    block_on(async {
        for at in 0..1000 {
            memory.write_line(Purpose::Index, at, &line_of([u64::from(at); 2])).await;
        }
        let mut all = vec![Line::ZERO; 1000];
        memory.read(Purpose::Data, 0, &mut all).await;
        assert!(all.iter().enumerate().all(|(at, line)| *line == line_of([at as u64; 2])));
        memory.exchange(true, 2).await;
    });
    let (asked, left, dispatched) = (memory.counts(), memory.host().counts(), memory.dispatched());
    assert_eq!((asked.index.writes, asked.data.reads, asked.data.lines_read), (1000, 1, 1000));
    assert_eq!((asked.slabs.writes, left.slabs.writes), (1, 1));
    let cacheable = (0..1000).filter(|at| memory.is_cacheable(*at)).count() as u64;
    assert_eq!(dispatched.cacheable(), 2 * cacheable);
    assert_eq!(dispatched.write_misses, cacheable);
    assert_eq!(left.index.writes, 1000 - cacheable + (dispatched.write_backs - left.data.writes));
    // Consecutive lines that are not cacheable are read in one access.
    assert_eq!(left.data.lines_read, 1000 - cacheable + dispatched.read_misses);
    assert!(left.data.reads < left.data.lines_read);
    assert_eq!(dispatched.dram_writes, cacheable + dispatched.read_misses);
}

#[test]
fn hits_do_not_wait_for_each_other() {
    let memory = local(100, 10, 1.0);
    block_on(async {
        memory.write_line(Purpose::Index, 5, &line_of([9; 2])).await;
        let _held = memory.slots.hold(5).await;
        assert_eq!(memory.read_line(Purpose::Index, 5).await, line_of([9; 2]));
    });
    assert_eq!(memory.dispatched().read_hits, 1);
}

#[test]
fn entries_are_kept_in_dispatched_memory() {
    for seed in 0..40 {
        let random = random(seed);
        let plan = reference::plan(400);
        let local = LocalDram::new(vec![Line::ZERO; 7]);
        let ratio = [0.5, 1.0][seed as usize % 2];
        let host = Jittery::new(&random, plan.lines(), ratio);
        let dram = JitteryDram { random: random.clone(), local };
        let memory = Dispatcher::new(host, dram, ratio);
        let storage = Storage::new(memory, &plan, plan.pools());
        block_on(reference::entries(&storage, &random, 400, 16));
    }
}
