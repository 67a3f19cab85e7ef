//! Random interleavings: a dispatcher always reads what was last written, and the host sees no two
//! accesses to a line of which one is a write.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use loch_fabric::lanes::{block_on, run};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::kv_direct::memory::Near;

/// What decides how often everything is pending.
type Random = Rc<RefCell<ChaCha8Rng>>;

fn up_to(random: &Random, most: u32) -> u32 {
    random.borrow_mut().random_range(0..=most)
}

async fn pending(mut times: u32) {
    poll_fn(|_| match times.checked_sub(1) {
        None => Poll::Ready(()),
        Some(left) => {
            times = left;
            Poll::Pending
        }
    })
    .await;
}

/// Host memory whose accesses are pending a random number of times, and that minds invariant 2.
struct Jittery {
    random: Random,
    lines: RefCell<Vec<Line>>,
    /// Reads of each line under way, or -1 for a write.
    under_way: RefCell<Vec<i32>>,
    counts: Cell<Counts>,
}

impl Jittery {
    fn new(random: &Random, lines: u32) -> Self {
        Self {
            random: random.clone(),
            lines: RefCell::new(vec![Line::ZERO; lines as usize]),
            under_way: RefCell::new(vec![0; lines as usize]),
            counts: Cell::default(),
        }
    }

    fn begin(&self, is_write: bool, at: u32, lines: usize) {
        let mut counts = self.counts.get();
        match is_write {
            true => counts.wrote(Purpose::Index, lines),
            false => counts.read(Purpose::Index, lines),
        }
        self.counts.set(counts);
        for line in &mut self.under_way.borrow_mut()[at as usize..at as usize + lines] {
            assert!(*line == 0 || (*line > 0 && !is_write), "two accesses to a line at once");
            *line = if is_write { -1 } else { *line + 1 };
        }
    }

    fn end(&self, is_write: bool, at: u32, lines: usize) {
        for line in &mut self.under_way.borrow_mut()[at as usize..at as usize + lines] {
            *line = if is_write { 0 } else { *line - 1 };
        }
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

    async fn read(&self, _: Purpose, at: u32, into: &mut [Line]) {
        self.begin(false, at, into.len());
        pending(up_to(&self.random, 5)).await;
        into.copy_from_slice(&self.lines.borrow()[at as usize..at as usize + into.len()]);
        pending(up_to(&self.random, 5)).await;
        self.end(false, at, into.len());
    }

    async fn write(&self, _: Purpose, at: u32, from: &[Line]) {
        self.begin(true, at, from.len());
        // It is posted at once, and may be seen at once.
        self.lines.borrow_mut()[at as usize..at as usize + from.len()].copy_from_slice(from);
        pending(up_to(&self.random, 5)).await;
        self.end(true, at, from.len());
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

/// What was last written, and who is at which line: as the station sees to it.
struct Model {
    last: Vec<u64>,
    under_way: Vec<i32>,
    next: u64,
}

fn line_of(number: u64) -> Line {
    let mut line = Line::ZERO;
    line.0[..8].copy_from_slice(&number.to_le_bytes());
    line.0[56..].copy_from_slice(&number.to_le_bytes());
    line
}

/// One operation on some lines in a row: reads of lines that nobody writes, or a write of lines that
/// nobody is at.
async fn operate(
    memory: &Dispatcher<Jittery, JitteryDram>,
    model: &RefCell<Model>,
    random: &Random,
) -> u64 {
    let total = memory.lines();
    let len = if up_to(random, 3) == 0 { 1 + up_to(random, 6) } else { 1 };
    let at = up_to(random, total - len);
    let is_write = up_to(random, 2) == 0;
    let lines = at as usize..(at + len) as usize;
    let free = |way: &i32| if is_write { *way == 0 } else { *way >= 0 };
    if !model.borrow().under_way[lines.clone()].iter().all(free) {
        return 0;
    }
    let change = |by: i32| {
        model.borrow_mut().under_way[lines.clone()].iter_mut().for_each(|way| *way += by);
    };
    if is_write {
        change(-1);
        let mut new = Vec::new();
        for line in lines.clone() {
            let mut model = model.borrow_mut();
            model.next += 1;
            model.last[line] = model.next;
            new.push(line_of(model.next));
        }
        match &new[..] {
            [line] => memory.write_line(Purpose::Index, at, line).await,
            lines => memory.write(Purpose::Data, at, lines).await,
        }
        change(1);
        return 1;
    }
    change(1);
    let mut found = vec![Line::ZERO; len as usize];
    match &mut found[..] {
        [line] => *line = memory.read_line(Purpose::Index, at).await,
        lines => memory.read(Purpose::Data, at, lines).await,
    }
    let last: Vec<Line> = lines.clone().map(|line| line_of(model.borrow().last[line])).collect();
    assert_eq!(found, last, "lines from {at} on");
    change(-1);
    1
}

#[track_caller]
fn check(seed: u64, lines: u32, slots: u32, ratio: f64, width: usize) -> Dispatched {
    let random: Random = Rc::new(RefCell::new(ChaCha8Rng::seed_from_u64(seed)));
    let dram = JitteryDram {
        random: random.clone(),
        local: LocalDram::new(vec![Line::ZERO; slots as usize]),
    };
    let memory = Dispatcher::new(Jittery::new(&random, lines), dram, ratio);
    let (last, under_way) = (vec![0; lines as usize], vec![0; lines as usize]);
    let model = RefCell::new(Model { last, under_way, next: 0 });
    let mut done = 0;
    let work = (0..400).map(|_| operate(&memory, &model, &random));
    block_on(run(width, work, |one| done += one));
    assert!(done > 50, "{done} operations of seed {seed}");
    let last = model.into_inner().last;
    for (at, last) in last.iter().enumerate() {
        assert_eq!(memory.peek(at as u32), line_of(*last), "line {at} of seed {seed}");
    }
    let dispatched = memory.dispatched();
    block_on(memory.flush());
    for (at, last) in last.iter().enumerate() {
        assert_eq!(memory.host().peek(at as u32), line_of(*last), "line {at} of seed {seed}");
        assert_eq!(memory.peek(at as u32), line_of(*last));
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
            memory.write_line(Purpose::Index, at, &line_of(u64::from(at))).await;
        }
        let mut all = vec![Line::ZERO; 1000];
        memory.read(Purpose::Data, 0, &mut all).await;
        assert!(all.iter().enumerate().all(|(at, line)| *line == line_of(at as u64)));
        memory.exchange(true, 2).await;
    });
    let (asked, left, dispatched) = (memory.counts(), memory.host().counts(), memory.dispatched());
    assert_eq!((asked.index.writes, asked.data.reads, asked.data.lines_read), (1000, 1, 1000));
    assert_eq!((asked.slabs.writes, left.slabs.writes), (1, 1));
    let cacheable = (0..1000).filter(|at| memory.is_cacheable(*at)).count() as u64;
    assert_eq!(dispatched.cacheable(), 2 * cacheable);
    assert_eq!(dispatched.write_misses, cacheable);
    assert_eq!(left.index.writes, 1000 - cacheable + (dispatched.write_backs - left.data.writes));
    // Lines that are not cacheable are read in as few accesses as they are in a row.
    assert_eq!(left.data.lines_read, 1000 - cacheable + dispatched.read_misses);
    assert!(left.data.reads < left.data.lines_read);
    assert_eq!(dispatched.dram_writes, cacheable + dispatched.read_misses);
}

#[test]
fn hits_do_not_wait_for_each_other() {
    let memory = local(100, 10, 1.0);
    block_on(async {
        memory.write_line(Purpose::Index, 5, &line_of(9)).await;
        let _held = memory.slots.hold(5).await;
        assert_eq!(memory.read_line(Purpose::Index, 5).await, line_of(9));
    });
    assert_eq!(memory.dispatched().read_hits, 1);
}
