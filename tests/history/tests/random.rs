//! Random histories: a history of a real store always has an order, and if an answer is changed,
//! the checker and the definition agree.

mod definition;

use loch_history::{Answer, Ask, History, Operation, Outcome, Update, Verdict, appended, check};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const BUDGET: u64 = 2_000_000;

/// How a random history is made.
#[derive(Clone, Copy, Debug)]
struct Plan {
    operations: usize,
    clients: u32,
    keys: u64,
    /// How many of a thousand operations have an unknown outcome; half of these happen.
    lost: u32,
    adds: bool,
    appends: bool,
    touches: bool,
    /// Whether there are updates other than ADD; and how many of a hundred answers say less than
    /// they could.
    updates: bool,
    curt: u32,
    /// Whether there are only a few values, so that each has many writers.
    few_values: bool,
    /// Whether the store forgets a value before every tenth operation.
    forgets: bool,
}

/// A plan with operations that all stores have.
const PLAIN: Plan = Plan {
    operations: 1,
    clients: 1,
    keys: 1,
    lost: 0,
    adds: false,
    appends: false,
    touches: false,
    updates: false,
    curt: 0,
    few_values: false,
    forgets: false,
};

/// The store: a value and a version for each key.
#[derive(Default)]
struct Store {
    keys: std::collections::HashMap<u64, (u64, u64)>,
    versions: u64,
}

impl Store {
    fn store(&mut self, key: u64, value: u64) -> u64 {
        self.versions += 1;
        // Versions are not consecutive numbers.
        let version = self.versions.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.keys.insert(key, (value, version));
        version
    }

    fn answer(&mut self, key: u64, ask: Ask) -> Answer {
        let held = self.keys.get(&key).copied();
        let version = held.map(|(_, version)| version);
        match ask {
            Ask::Get => Answer::Found(held),
            Ask::Put(value) => Answer::Stored(self.store(key, value)),
            Ask::PutIfAbsent(value) if held.is_none() => Answer::Stored(self.store(key, value)),
            Ask::PutIfVersion { version: asked, value } if version == Some(asked) => {
                Answer::Stored(self.store(key, value))
            }
            Ask::PutIfAbsent(_) | Ask::PutIfVersion { .. } => Answer::Refused(version),
            Ask::Append(piece) => {
                let value = held.map_or(piece, |(value, _)| appended(value, piece));
                Answer::Stored(self.store(key, value))
            }
            Ask::Touch(_) if held.is_none() => Answer::Refused(None),
            Ask::Touch(_) => {
                let value = held.map_or(0, |(value, _)| value);
                let version = self.store(key, value);
                // Every other one returns the value.
                if version & 1 == 0 {
                    Answer::Stored(version)
                } else {
                    Answer::Found(Some((value, version)))
                }
            }
            Ask::Expire(_) | Ask::Forget => unreachable!("nobody is told of it"),
            Ask::DeleteIfVersion(asked) if version != Some(asked) => Answer::Deleted(false),
            Ask::Delete | Ask::DeleteIfVersion(_) => {
                Answer::Deleted(self.keys.remove(&key).is_some())
            }
            Ask::Add(add) => {
                let before = held.map_or(0, |(value, _)| value);
                self.store(key, before.wrapping_add(add));
                Answer::Before(before)
            }
            Ask::Update(Update::AddIfPresent(_)) if held.is_none() => Answer::Refused(None),
            Ask::Update(update) => {
                let before = held.map_or(0, |(value, _)| value);
                let after = match update {
                    Update::AddIfPresent(add) => before.wrapping_add(add),
                    Update::AddSaturating(add) => before.saturating_add(add),
                    Update::Exchange(value) => value,
                    Update::CompareSwap { expected, value } if expected == before => value,
                    Update::CompareSwap { .. } => before,
                };
                self.store(key, after);
                Answer::Before(before)
            }
        }
    }
}

/// A less precise answer, if there is one.
fn curtly(ask: Ask, answer: Answer, random: &mut ChaCha8Rng) -> Answer {
    match (ask, answer) {
        (Ask::Touch(_), Answer::Found(Some((value, _)))) => Answer::Value(value),
        (Ask::Get, Answer::Found(Some((value, _)))) => match random.random() {
            true => Answer::Value(value),
            false => Answer::Present,
        },
        (Ask::Put(_) | Ask::PutIfAbsent(_) | Ask::Append(_) | Ask::Touch(_), Answer::Stored(_))
        | (Ask::Update(Update::AddIfPresent(_)), Answer::Before(_))
        | (Ask::Delete, Answer::Deleted(_)) => Answer::Done,
        (Ask::PutIfAbsent(_), Answer::Refused(Some(_))) => Answer::Held,
        (_, answer) => answer,
    }
}

/// A history of a store that does one operation at a time, with intervals around the moments of the
/// operations.
fn history_of(plan: Plan, seed: u64) -> Vec<Operation> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut store = Store::default();
    let mut history: Vec<Operation> = Vec::new();
    // When each client is free again.
    let mut free = vec![0; plan.clients as usize];
    for n in 0..plan.operations {
        let moment = 10 * (n as u64 + 1);
        let client = random.random_range(0..plan.clients);
        let key = random.random_range(0..plan.keys);
        if plan.forgets && random.random_range(0..10) == 0 {
            store.keys.remove(&random.random_range(0..plan.keys));
        }
        let value = if plan.few_values { random.random_range(1..4) } else { n as u64 + 1 };
        let (adds, appends) = (2 * u32::from(plan.adds), 2 * u32::from(plan.appends));
        let touches = 2 * u32::from(plan.touches);
        let kinds = 10 + adds + appends + touches + 4 * u32::from(plan.updates);
        let ask = match random.random_range(0..kinds) {
            0..3 => Ask::Get,
            3..5 => Ask::Put(value),
            5 => Ask::PutIfAbsent(value),
            6..8 => {
                // Often the right version, else an old one.
                let old = random.random_range(1..n as u64 + 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let now = store.keys.get(&key).map(|(_, version)| *version);
                let version = now.filter(|_| random.random_range(0..4) != 0).unwrap_or(old);
                match random.random_range(0..3) {
                    0 => Ask::DeleteIfVersion(version),
                    _ => Ask::PutIfVersion { version, value },
                }
            }
            8..10 => Ask::Delete,
            kind if kind < 10 + adds => Ask::Add(value),
            kind if kind < 10 + adds + appends => Ask::Append(value),
            kind if kind < 10 + adds + appends + touches => Ask::Touch(value),
            kind => Ask::Update(match kind % 4 {
                0 => Update::AddIfPresent(value),
                1 => Update::AddSaturating([value, u64::MAX - 1][random.random_range(0..2usize)]),
                2 => Update::Exchange(value),
                _ => {
                    let now = store.keys.get(&key).map_or(0, |(value, _)| *value);
                    let expected = if random.random() { now } else { value };
                    Update::CompareSwap { expected, value }
                }
            }),
        };
        let called = random.random_range(free[client as usize].min(moment)..=moment);
        let called = called.max(moment.saturating_sub(40 * plan.clients as u64));
        let returned = moment + random.random_range(0..20 * plan.clients as u64);
        free[client as usize] = returned;
        let lost = random.random_range(0..1000) < plan.lost;
        let (outcome, returned) = if lost {
            if random.random() {
                store.answer(key, ask);
            }
            let until = Outcome::UnknownUntil(returned);
            (if random.random() { Outcome::Unknown } else { until }, u64::MAX)
        } else {
            let answer = store.answer(key, ask);
            let is_curt = plan.curt > 0 && random.random_range(0..100) < plan.curt;
            let answer = if is_curt { curtly(ask, answer, &mut random) } else { answer };
            (Outcome::Known(answer), returned)
        };
        history.push(Operation { client, key, ask, called, returned, outcome });
    }
    history
}

/// The same as a history to check.
fn told_by(plan: Plan, seed: u64) -> History {
    let history = History::from(history_of(plan, seed));
    if plan.forgets { history.forgetting() } else { history }
}

/// Another answer of the same kind.
fn corrupted(answer: Answer, random: &mut ChaCha8Rng, history: &[Operation]) -> Answer {
    let answers = history.iter().filter_map(|operation| match operation.outcome {
        Outcome::Known(answer) => Some(answer),
        _ => None,
    });
    let alike: Vec<Answer> = answers
        .filter(|a| std::mem::discriminant(a) == std::mem::discriminant(&answer) && *a != answer)
        .collect();
    if !alike.is_empty() && random.random() {
        return alike[random.random_range(0..alike.len())];
    }
    match answer {
        Answer::Found(Some(_)) => Answer::Found(None),
        Answer::Found(None) => Answer::Found(Some((1, 0x9e37_79b9_7f4a_7c15))),
        Answer::Stored(version) => match random.random() {
            true => Answer::Refused(Some(version)),
            false => Answer::Stored(version ^ 1),
        },
        Answer::Refused(Some(_)) => Answer::Refused(None),
        Answer::Refused(None) => Answer::Refused(Some(5)),
        Answer::Deleted(had) => Answer::Deleted(!had),
        Answer::Before(before) => Answer::Before(before.wrapping_add(1)),
        Answer::Value(value) => Answer::Value(value.wrapping_add(1)),
        Answer::Present => Answer::Found(None),
        Answer::Done => Answer::NoEffect,
        Answer::Held => Answer::Done,
        Answer::NoEffect => Answer::NoEffect,
    }
}

fn plan(operations: usize) -> impl Strategy<Value = Plan> {
    let lost = prop_oneof![Just(0), Just(50), Just(300)];
    let curt = prop_oneof![Just(0), Just(30), Just(100)];
    let kinds = (any::<[bool; 3]>(), any::<bool>(), curt, any::<[bool; 2]>());
    (1..=operations, 1..5_u32, 1..3_u64, lost, kinds).prop_map(
        |(
            operations,
            clients,
            keys,
            lost,
            ([adds, appends, touches], updates, curt, [few_values, forgets]),
        )| Plan {
            operations,
            clients,
            keys,
            lost,
            adds,
            appends,
            touches,
            updates,
            curt,
            few_values,
            forgets,
        },
    )
}

/// A failure prints its seed, so none is kept in files.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_a_store_did_has_an_order(plan in plan(60), seed: u64) {
        let plan = Plan { lost: plan.lost.min(50), ..plan };
        let verdict = check(&told_by(plan, seed), BUDGET);
        prop_assert!(verdict.is_linearizable(), "{verdict}");
    }

    /// The checker against the definition: every order of every choice of what happened.
    #[test]
    fn the_checker_agrees_with_the_definition(plan in plan(7), seed: u64) {
        let plan = Plan { keys: 1, ..plan };
        let mut history = told_by(plan, seed).operations().to_vec();
        prop_assert!(definition::has_order(&history), "the store itself");
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        for _ in 0..3 {
            let at = random.random_range(0..history.len());
            if let Outcome::Known(answer) = history[at].outcome {
                history[at].outcome = Outcome::Known(corrupted(answer, &mut random, &history));
            }
            let verdict = check(&history.clone().into(), BUDGET);
            let right = definition::has_order(&history);
            prop_assert_eq!(verdict.is_linearizable(), right, "{}", verdict);
        }
    }

    /// A shrunk history fails, and contains no operation that the whole one does not explain.
    #[test]
    fn what_is_left_of_a_failure_fails(plan in plan(40), seed: u64) {
        let plan = Plan { keys: 1, lost: plan.lost.min(50), ..plan };
        let mut history = told_by(plan, seed).operations().to_vec();
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let at = random.random_range(0..history.len());
        if let Outcome::Known(answer) = history[at].outcome {
            history[at].outcome = Outcome::Known(corrupted(answer, &mut random, &history));
        }
        if let Verdict::Violation(violation) = check(&history.into(), BUDGET) {
            let again = check(&violation.history, BUDGET);
            prop_assert!(matches!(again, Verdict::Violation(_)), "{violation}");
            let left = violation.history.operations();
            prop_assert!(left.contains(&violation.blocked), "{violation}");
        }
    }
}

#[test]
fn corruption_is_found_more_often_than_not() {
    let plan = Plan { operations: 60, clients: 3, keys: 1, adds: true, ..PLAIN };
    let found = (0..200_u64).filter(|seed| {
        let mut history = history_of(plan, *seed);
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let at = random.random_range(0..history.len());
        if let Outcome::Known(answer) = history[at].outcome {
            history[at].outcome = Outcome::Known(corrupted(answer, &mut random, &history));
        }
        !check(&history.into(), BUDGET).is_linearizable()
    });
    assert!(found.count() > 120);
}

/// Eight clients, four keys; clients that die again and again; and a store that forgets.
#[test]
fn long_histories_are_quickly_checked() {
    let plans = [(8, 0, false), (8, 10, false), (24, 10, false), (8, 10, true), (24, 10, true)];
    for (clients, lost, forgets) in plans {
        let operations = 20_000;
        let plan = Plan { operations, clients, keys: 4, lost, forgets, ..PLAIN };
        let history = told_by(plan, 1);
        let begun = std::time::Instant::now();
        let verdict = check(&history, BUDGET);
        println!("{operations} operations, {clients} clients, {lost} lost: {:?}", begun.elapsed());
        assert!(verdict.is_linearizable(), "{verdict}");
    }
}

/// The same with a value that comes back much later, which the checker has to find and show.
#[test]
fn a_failure_in_a_long_history_is_quickly_shown() {
    let plan = Plan { operations: 20_000, clients: 8, keys: 4, adds: true, ..PLAIN };
    let mut history = history_of(plan, 2);
    let finds = |operation: &Operation| match operation.outcome {
        Outcome::Known(Answer::Found(found)) => found,
        _ => None,
    };
    let sees = |o: &Operation, key| o.key == key && finds(o).is_some();
    let at = (10_000..).find(|n| sees(&history[*n], 2)).expect("a third are GETs");
    let old = history[100..].iter().find(|o| sees(o, 2)).and_then(finds);
    history[at].outcome = Outcome::Known(Answer::Found(old));
    let wrong = history[at];
    let begun = std::time::Instant::now();
    let verdict = check(&history.into(), BUDGET);
    println!("{:?}\n{verdict}", begun.elapsed());
    let Verdict::Violation(violation) = verdict else { panic!("{verdict}") };
    assert!(violation.history.operations().contains(&wrong));
    assert!((2..8).contains(&violation.history.len()));
}
