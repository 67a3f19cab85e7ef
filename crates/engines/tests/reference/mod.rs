//! A model against which memories are checked: the bytes that were last written, under random
//! interleavings.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use loch_engines::kv_direct::item::Item;
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::kv_direct::storage::{Options, Plan, Storage};
use loch_engines::lines::{HALF_BYTES, HostMemory, LINE_BYTES, Line, Purpose};
use loch_engines::operation::Version;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The random numbers that decide how often each operation is pending.
pub type Random = Rc<RefCell<ChaCha8Rng>>;

pub fn random(seed: u64) -> Random {
    Rc::new(RefCell::new(ChaCha8Rng::seed_from_u64(seed)))
}

pub fn up_to(random: &Random, most: u32) -> u32 {
    random.borrow_mut().random_range(0..=most)
}

pub async fn pending(mut times: u32) {
    poll_fn(|_| match times.checked_sub(1) {
        None => Poll::Ready(()),
        Some(left) => {
            times = left;
            Poll::Pending
        }
    })
    .await;
}

/// The bytes that were last written, and the accesses under way. It excludes accesses as the
/// station does.
pub struct Reference(RefCell<Halves>);

/// The halves of all lines.
struct Halves {
    last: Vec<u64>,
    /// For each half the number of reads under way, or -1 for a write.
    under_way: Vec<i32>,
    next: u64,
}

fn half_of(number: u64) -> [u8; HALF_BYTES] {
    let mut half = [0; HALF_BYTES];
    half[..8].copy_from_slice(&number.to_le_bytes());
    half[24..].copy_from_slice(&number.to_le_bytes());
    half
}

pub fn line_of(halves: [u64; 2]) -> Line {
    let mut line = Line::ZERO;
    line.0[..HALF_BYTES].copy_from_slice(&half_of(halves[0]));
    line.0[HALF_BYTES..].copy_from_slice(&half_of(halves[1]));
    line
}

impl Reference {
    pub fn new(lines: u32) -> Self {
        let halves = lines as usize * 2;
        Self(RefCell::new(Halves { last: vec![0; halves], under_way: vec![0; halves], next: 0 }))
    }

    /// The content of each line while no operation is under way.
    pub fn lines(&self) -> Vec<Line> {
        let halves = self.0.borrow();
        halves.last.chunks(2).map(|two| line_of([two[0], two[1]])).collect()
    }

    /// One operation on some consecutive lines, or on half a line: a read where no write is under
    /// way, or a write where no access is. Returns the number of operations that were done: 0 or 1.
    pub async fn operate<M: HostMemory>(&self, memory: &M, random: &Random) -> u64 {
        let model = &self.0;
        let kind = up_to(random, 3);
        let len = if kind == 0 { 1 + up_to(random, 6) } else { 1 };
        let at = up_to(random, memory.lines() - len);
        let halves = match kind {
            0 | 1 => at as usize * 2..(at + len) as usize * 2,
            _ => {
                let half = (at * 2 + up_to(random, 1)) as usize;
                half..half + 1
            }
        };
        let is_write = up_to(random, 2) == 0;
        let free = |way: &i32| if is_write { *way == 0 } else { *way >= 0 };
        if !model.borrow().under_way[halves.clone()].iter().all(free) {
            return 0;
        }
        let change = |by: i32| {
            model.borrow_mut().under_way[halves.clone()].iter_mut().for_each(|way| *way += by);
        };
        if is_write {
            change(-1);
            let mut new = Vec::new();
            for half in halves.clone() {
                let mut model = model.borrow_mut();
                model.next += 1;
                model.last[half] = model.next;
                new.push(model.next);
            }
            match &new[..] {
                [one] => {
                    memory.write_half(Purpose::Data, halves.start as u32, &half_of(*one)).await
                }
                [a, b] => memory.write_line(Purpose::Index, at, &line_of([*a, *b])).await,
                many => {
                    let lines: Vec<Line> =
                        many.chunks(2).map(|two| line_of([two[0], two[1]])).collect();
                    memory.write(Purpose::Data, at, &lines).await;
                }
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
        for half in halves.clone() {
            let bytes = &found[half / 2 - at as usize].0[half % 2 * HALF_BYTES..][..HALF_BYTES];
            assert_eq!(bytes, half_of(model.borrow().last[half]), "half {half}");
        }
        change(-1);
        1
    }
}

/// A plan of a small table with entries of all kinds.
pub fn plan(lines: u64) -> Plan {
    let options = Options {
        bytes: lines * LINE_BYTES as u64,
        index_ratio: 0.2,
        inline_bytes_max: 20,
        versions: false,
        value_bytes_max: 2000,
        key_bytes: None,
    };
    Plan::new(&options).expect("it is a table")
}

/// Operations on entries in a memory, `width` at a time, checked against a map. They are the
/// operations of a processor, so a processor may run on a memory that passes.
pub async fn entries<H: HostMemory>(
    storage: &Storage<H>,
    random: &Random,
    operations: u32,
    width: usize,
) {
    const SEED: u64 = 5;
    let known: RefCell<HashMap<u32, Vec<u8>>> = RefCell::default();
    let busy: RefCell<Vec<u32>> = RefCell::default();
    let done = Cell::new(0u32);
    let operate = || async {
        let number = up_to(random, 60);
        let key = number.to_le_bytes();
        let hash = KeyHash::of(SEED, &key);
        let group = storage.group(hash);
        if busy.borrow().contains(&group) {
            // The station would let it wait.
            return;
        }
        busy.borrow_mut().push(group);
        let mut item = Item::new();
        let mut lookup = storage.lookup(hash, &key, &mut item).await.expect("it is whole");
        let was = known.borrow().get(&number).cloned();
        assert_eq!(lookup.found().then(|| item.value().to_vec()), was, "key {number}");
        let choice = up_to(random, 9);
        if choice < 4 {
            let most = [8, 20, 60, 900][up_to(random, 3) as usize];
            let value = vec![choice as u8 + number as u8; up_to(random, most) as usize];
            // There may be no room.
            if storage.store(&mut lookup, &key, &value, Version::from_u64(0), None).await.is_ok() {
                known.borrow_mut().insert(number, value);
            }
        } else if choice == 4 {
            storage.remove(&mut lookup).await.expect("it is whole");
            known.borrow_mut().remove(&number);
        }
        busy.borrow_mut().retain(|other| *other != group);
        done.set(done.get() + 1);
    };
    let work = (0..operations).map(|_| operate());
    loch_fabric::lanes::run(width, work, |()| ()).await;
    assert!(done.get() > operations / 8, "{} operations", done.get());
    let report = storage.check(SEED);
    assert_eq!(report.broken, Vec::<String>::new());
    assert_eq!(report.entries, known.borrow().len() as u64);
}
