//! Histories made by hand, good and bad.

use loch_history::{
    Answer, Ask, History, Operation, Outcome, Verdict, appended, check, shrink, timeline,
};

const BUDGET: u64 = 100_000;

fn known(ask: Ask, called: u64, returned: u64, answer: Answer) -> Operation {
    let client = (called % 4) as u32;
    Operation { client, key: 1, ask, called, returned, outcome: Outcome::Known(answer) }
}

fn unknown(ask: Ask, called: u64) -> Operation {
    let (returned, outcome) = (u64::MAX, Outcome::Unknown);
    Operation { client: 9, key: 1, ask, called, returned, outcome }
}

fn dead_at(ask: Ask, called: u64, moment: u64) -> Operation {
    Operation { outcome: Outcome::UnknownUntil(moment), ..unknown(ask, called) }
}

/// A value's version in these histories is its tag and a hundred.
fn put(value: u64, called: u64, returned: u64) -> Operation {
    known(Ask::Put(value), called, returned, Answer::Stored(100 + value))
}

fn get(value: u64, called: u64, returned: u64) -> Operation {
    known(Ask::Get, called, returned, Answer::Found(Some((value, 100 + value))))
}

fn nothing(called: u64, returned: u64) -> Operation {
    known(Ask::Get, called, returned, Answer::Found(None))
}

fn delete(had: bool, called: u64, returned: u64) -> Operation {
    known(Ask::Delete, called, returned, Answer::Deleted(had))
}

fn absent(value: u64, called: u64, returned: u64, answer: Answer) -> Operation {
    known(Ask::PutIfAbsent(value), called, returned, answer)
}

fn swap(version: u64, value: u64, called: u64, returned: u64, answer: Answer) -> Operation {
    known(Ask::PutIfVersion { version, value }, called, returned, answer)
}

fn add(n: u64, called: u64, returned: u64, before: u64) -> Operation {
    known(Ask::Add(n), called, returned, Answer::Before(before))
}

fn append(piece: u64, called: u64, returned: u64) -> Operation {
    known(Ask::Append(piece), called, returned, Answer::Stored(200 + piece))
}

/// A GET that finds the value made of pieces, the last of which was appended.
fn whole(pieces: &[u64], called: u64, returned: u64) -> Operation {
    let value = pieces.iter().copied().reduce(appended).unwrap();
    let version = 200 + pieces.last().unwrap();
    known(Ask::Get, called, returned, Answer::Found(Some((value, version))))
}

#[track_caller]
fn good(operations: &[Operation]) {
    let verdict = check(&operations.to_vec().into(), BUDGET);
    assert!(verdict.is_linearizable(), "{verdict}");
}

#[track_caller]
fn bad(operations: &[Operation]) {
    let verdict = check(&operations.to_vec().into(), BUDGET);
    assert!(matches!(verdict, Verdict::Violation(_)), "{}", timeline(&operations.to_vec().into()));
}

#[test]
fn nothing_happened() {
    good(&[]);
    good(&[nothing(0, 1)]);
    bad(&[get(1, 0, 1)]);
}

#[test]
fn a_get_beside_a_put_sees_either() {
    good(&[put(1, 0, 9), nothing(1, 2), get(1, 3, 4)]);
    good(&[put(1, 0, 5), nothing(1, 9)]);
    good(&[put(1, 0, 5), get(1, 1, 9)]);
}

#[test]
fn new_then_old() {
    bad(&[put(1, 0, 9), get(1, 1, 2), nothing(3, 4)]);
    bad(&[put(1, 0, 1), put(2, 2, 9), get(2, 3, 4), get(1, 5, 6)]);
}

#[test]
fn a_lost_write() {
    bad(&[put(1, 0, 1), nothing(2, 3)]);
}

#[test]
fn a_stale_read() {
    bad(&[put(1, 0, 1), put(2, 2, 3), get(1, 4, 5)]);
    good(&[put(1, 0, 1), put(2, 2, 3), get(1, 2, 5)]);
}

#[test]
fn who_touches_is_concurrent() {
    good(&[put(1, 0, 5), nothing(5, 6)]);
    bad(&[put(1, 0, 5), nothing(6, 7)]);
}

#[test]
fn a_put_that_lost_to_another_was_there_for_a_moment() {
    good(&[put(1, 0, 9), put(2, 1, 8), get(2, 10, 11), get(2, 12, 13)]);
    bad(&[put(1, 0, 9), put(2, 1, 8), get(2, 10, 11), get(1, 12, 13)]);
}

#[test]
fn deleted_twice() {
    bad(&[put(1, 0, 1), delete(true, 2, 5), delete(true, 3, 6)]);
    good(&[put(1, 0, 1), delete(true, 2, 5), delete(false, 3, 6)]);
    good(&[put(1, 0, 1), delete(true, 2, 5), put(2, 2, 6), delete(true, 3, 6)]);
}

#[test]
fn a_deleted_value_returns() {
    bad(&[put(1, 0, 1), delete(true, 2, 3), get(1, 4, 5)]);
}

#[test]
fn an_add_is_lost() {
    good(&[add(5, 0, 9, 0), add(7, 1, 8, 5)]);
    bad(&[add(5, 0, 9, 0), add(7, 1, 8, 0)]);
    bad(&[add(5, 0, 1, 0), add(7, 2, 3, 12)]);
    good(&[put(3, 0, 1), add(u64::MAX, 2, 3, 3), add(1, 4, 5, 2), delete(true, 6, 7)]);
}

#[test]
fn an_add_gives_a_version_that_is_not_told() {
    let sum = |version| known(Ask::Get, 2, 3, Answer::Found(Some((5, version))));
    let again = |version| known(Ask::Get, 4, 5, Answer::Found(Some((5, version))));
    good(&[add(5, 0, 1, 0), sum(77), again(77)]);
    bad(&[add(5, 0, 1, 0), sum(77), again(78)]);
    good(&[add(5, 0, 1, 0), sum(77), swap(77, 9, 4, 5, Answer::Stored(78))]);
    bad(&[add(5, 0, 1, 0), sum(77), swap(70, 9, 4, 5, Answer::Stored(78))]);
    // Its version belongs to another value.
    bad(&[put(1, 0, 0), delete(true, 0, 0), add(5, 1, 1, 0), sum(101)]);
}

#[test]
fn a_version_is_used_twice() {
    let same = known(Ask::Put(2), 2, 3, Answer::Stored(101));
    bad(&[put(1, 0, 1), same]);
    bad(&[put(1, 0, 1), unknown(Ask::Put(2), 2), {
        known(Ask::Get, 4, 5, Answer::Found(Some((2, 101))))
    }]);
}

#[test]
fn a_value_returns_with_another_version() {
    let back = |version| known(Ask::Put(1), 4, 5, Answer::Stored(version));
    let aba = [put(1, 0, 1), put(2, 2, 3), back(105)];
    // A conditional PUT distinguishes the second from the first.
    good(&[&aba[..], &[swap(101, 3, 6, 7, Answer::Refused(Some(105)))]].concat());
    bad(&[&aba[..], &[swap(101, 3, 6, 7, Answer::Stored(103))]].concat());
    bad(&[&aba[..], &[get(1, 6, 7)]].concat());
}

#[test]
fn two_put_if_absent() {
    let [done, refused] = [Answer::Stored(102), Answer::Refused(Some(101))];
    bad(&[absent(1, 0, 5, Answer::Stored(101)), absent(2, 1, 6, done)]);
    good(&[absent(1, 0, 5, Answer::Stored(101)), absent(2, 1, 6, refused)]);
    bad(&[absent(1, 0, 5, Answer::Stored(101)), absent(2, 1, 6, Answer::Refused(Some(9)))]);
    bad(&[absent(1, 0, 5, Answer::Stored(101)), absent(2, 1, 6, Answer::Refused(None))]);
    bad(&[absent(1, 0, 5, refused)]);
}

#[test]
fn put_if_version() {
    good(&[put(1, 0, 1), swap(101, 2, 2, 3, Answer::Stored(102)), get(2, 4, 5)]);
    let both = [swap(101, 2, 2, 5, Answer::Stored(102)), swap(101, 3, 2, 5, Answer::Stored(103))];
    bad(&[&[put(1, 0, 1)], &both[..]].concat());
    let refused = |version| swap(101, 3, 2, 5, Answer::Refused(version));
    good(&[put(1, 0, 1), both[0], refused(Some(102))]);
    bad(&[put(1, 0, 1), both[0], refused(Some(101))]);
    bad(&[put(1, 0, 1), both[0], refused(None)]);
    good(&[refused(None)]);
    bad(&[put(1, 0, 1), refused(Some(101))]);
}

/// A store that forgets may miss, and may begin an ADD again; but nothing comes back.
#[test]
fn a_store_that_forgets_brings_nothing_back() {
    let forgetting = |operations: &[Operation]| {
        History::from(operations.to_vec()).forgetting().operations().to_vec()
    };
    let often = [put(1, 0, 1), nothing(2, 3), add(5, 4, 5, 0), nothing(6, 7), delete(false, 8, 9)];
    good(&forgetting(&often));
    bad(&forgetting(&[put(1, 0, 1), nothing(2, 3), get(1, 4, 5)]));
    bad(&forgetting(&[put(1, 0, 1), put(2, 2, 3), get(1, 4, 5)]));
    bad(&forgetting(&[put(1, 0, 1), delete(true, 2, 3), delete(true, 4, 5)]));
}

#[test]
fn what_had_no_effect_had_none() {
    let refused = known(Ask::Put(1), 0, 1, Answer::NoEffect);
    good(&[refused, nothing(2, 3)]);
    bad(&[refused, get(1, 2, 3)]);
}

#[test]
fn unknown_and_late_or_never() {
    let late = unknown(Ask::Put(2), 0);
    good(&[late, nothing(1, 2), get(2, 3, 4)]);
    good(&[late, nothing(1, 2)]);
    good(&[put(1, 0, 1), late, get(1, 3, 4), put(3, 5, 6), get(3, 7, 8), get(2, 9, 10)]);
    bad(&[late, get(2, 1, 2), nothing(3, 4)]);
    bad(&[put(1, 0, 1), late, get(2, 3, 4), put(3, 5, 6), get(3, 7, 8), get(2, 9, 10)]);
    bad(&[unknown(Ask::Put(2), 5), get(2, 1, 2)]);
}

#[test]
fn unknown_until_it_was_dead() {
    let late = dead_at(Ask::Put(2), 0, 5);
    good(&[late, nothing(1, 2), get(2, 3, 8)]);
    good(&[late, nothing(3, 4), get(2, 6, 8)]);
    bad(&[late, nothing(6, 7), get(2, 8, 9)]);
    good(&[put(1, 0, 1), dead_at(Ask::Delete, 2, 5), get(1, 3, 4), nothing(8, 9)]);
    bad(&[put(1, 0, 1), dead_at(Ask::Delete, 2, 5), get(1, 6, 7), nothing(8, 9)]);
    // Two of them differ only in their ends.
    let one = |at, moment| dead_at(Ask::Delete, at, moment);
    good(&[put(1, 0, 1), one(1, 9), one(1, 4), nothing(3, 4), put(2, 6, 7), nothing(8, 9)]);
    bad(&[put(1, 0, 1), one(1, 5), one(1, 4), nothing(3, 4), put(2, 6, 7), nothing(8, 9)]);
}

#[test]
fn a_value_may_expire_once_and_no_other_with_it() {
    let expires = |value, at| unknown(Ask::Expire(value), at);
    good(&[put(1, 0, 1), expires(1, 5), nothing(6, 7)]);
    good(&[put(1, 0, 1), expires(1, 5), get(1, 6, 7), nothing(8, 9)]);
    good(&[put(1, 0, 1), expires(1, 5), get(1, 6, 7), delete(false, 8, 9)]);
    // It must not expire too soon, and must not come back.
    bad(&[put(1, 0, 1), expires(1, 5), nothing(2, 3)]);
    bad(&[put(1, 0, 1), expires(1, 5), nothing(6, 7), get(1, 8, 9)]);
    // It must not end with another value, nor expire twice.
    bad(&[put(1, 0, 1), expires(1, 5), put(2, 6, 7), nothing(8, 9)]);
    let again = |called| known(Ask::Put(1), called, called + 1, Answer::Stored(200 + called));
    bad(&[again(0), expires(1, 5), nothing(6, 7), again(8), nothing(10, 11)]);
    // It may have been there unseen, and is distinguished from similar values.
    let unseen = unknown(Ask::Put(2), 0);
    good(&[put(1, 0, 1), unseen, expires(2, 5), nothing(6, 7)]);
    bad(&[put(1, 0, 1), unseen, expires(2, 5), nothing(3, 4)]);
    bad(&[
        put(1, 0, 1),
        unknown(Ask::Put(3), 0),
        unseen,
        expires(2, 5),
        nothing(6, 7),
        { known(Ask::Delete, 8, 9, Answer::Deleted(true)) },
        delete(true, 10, 11),
        delete(true, 12, 13),
    ]);
}

#[test]
fn what_is_appended_comes_behind_what_there_is() {
    good(&[append(2, 0, 1), whole(&[2], 2, 3), delete(true, 4, 5)]);
    good(&[put(1, 0, 1), append(2, 2, 3), whole(&[1, 2], 4, 5)]);
    good(&[put(1, 0, 1), append(2, 2, 6), append(3, 2, 6), whole(&[1, 3, 2], 7, 8)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), append(3, 4, 5), whole(&[1, 3, 2], 7, 8)]);
    // No piece is lost, comes twice, or forms a value of its own.
    bad(&[put(1, 0, 1), append(2, 2, 6), append(3, 2, 6), whole(&[1, 3], 7, 8)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), whole(&[1, 2, 2], 4, 5)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), whole(&[2], 4, 5)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), get(1, 4, 5)]);
    // Its version belongs to the new value, and to no other.
    let swap = |version| swap(version, 4, 4, 5, Answer::Stored(104));
    good(&[put(1, 0, 1), append(2, 2, 3), swap(202), get(4, 6, 7)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), swap(101), get(4, 6, 7)]);
    bad(&[put(1, 0, 1), known(Ask::Append(2), 2, 3, Answer::Stored(101))]);
}

#[test]
fn what_nobody_saw_may_have_been_appended_to() {
    let unseen = |value| unknown(Ask::Put(value), 0);
    good(&[unseen(1), unseen(3), append(2, 2, 3), whole(&[1, 2], 4, 5)]);
    bad(&[unseen(1), unseen(3), append(2, 2, 3), whole(&[4, 2], 4, 5)]);
    good(&[put(1, 0, 1), unknown(Ask::Append(2), 0), append(3, 2, 3), whole(&[1, 2, 3], 4, 5)]);
    good(&[put(1, 0, 1), unknown(Ask::Append(2), 0), append(3, 2, 3), whole(&[1, 3], 4, 5)]);
    bad(&[put(1, 0, 1), dead_at(Ask::Append(2), 0, 1), append(3, 2, 3), {
        whole(&[1, 3, 2], 4, 5)
    }]);
}

#[test]
fn what_is_appended_expires_with_the_value() {
    let expires = |value, at| unknown(Ask::Expire(value), at);
    good(&[put(1, 0, 1), append(2, 2, 3), expires(1, 5), whole(&[1, 2], 6, 7), nothing(8, 9)]);
    good(&[put(1, 0, 1), expires(1, 5), append(2, 6, 7), whole(&[2], 8, 9)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), expires(1, 5), nothing(3, 4)]);
    bad(&[put(1, 0, 1), append(2, 2, 3), expires(2, 5), nothing(6, 7)]);
    bad(&[put(1, 0, 1), expires(1, 5), nothing(6, 7), append(2, 8, 9), nothing(10, 11)]);
    // Two orders of the same operations differ in whether their last value expires. The search must
    // not take the one for the other.
    good(&[put(1, 0, 5), put(2, 1, 3), expires(2, 1), append(3, 4, 6), nothing(7, 8)]);
    bad(&[put(1, 4, 5), put(2, 1, 3), expires(2, 1), append(3, 6, 7), nothing(8, 9)]);
}

#[test]
fn a_touched_value_has_another_version_and_another_end() {
    let expires = |value, at| unknown(Ask::Expire(value), at);
    let touch =
        |tag, called, version| known(Ask::Touch(tag), called, called + 1, Answer::Stored(version));
    let found = |value, version, called| {
        known(Ask::Get, called, called + 1, Answer::Found(Some((value, version))))
    };
    good(&[put(1, 0, 1), touch(7, 2, 301), found(1, 301, 4)]);
    bad(&[put(1, 0, 1), touch(7, 2, 301), get(1, 4, 5)]);
    bad(&[put(1, 0, 1), touch(7, 2, 101), get(1, 4, 5)]);
    // One that returns the value.
    let returned = |tag, called, value, version| {
        let found = Answer::Found(Some((value, version)));
        known(Ask::Touch(tag), called, called + 1, found)
    };
    good(&[put(1, 0, 1), returned(7, 2, 1, 301), found(1, 301, 4)]);
    bad(&[put(1, 0, 1), put(2, 2, 3), returned(7, 4, 1, 301)]);
    bad(&[put(1, 0, 1), returned(7, 2, 1, 101)]);
    // It gives no value to a key that has none, and gives none back.
    let none = |called| known(Ask::Touch(7), called, called + 1, Answer::Refused(None));
    good(&[none(0), put(1, 2, 3), delete(true, 4, 5), none(6), nothing(8, 9)]);
    bad(&[put(1, 0, 1), none(2)]);
    bad(&[put(1, 0, 1), delete(true, 2, 3), touch(7, 4, 301)]);
    bad(&[put(1, 0, 1), put(2, 2, 3), touch(7, 4, 301), found(1, 301, 6)]);
    // Its expiry takes the place of the value's own.
    good(&[put(1, 0, 1), expires(7, 3), touch(7, 2, 301), nothing(6, 7)]);
    bad(&[put(1, 0, 1), expires(1, 3), touch(7, 2, 301), nothing(6, 7)]);
    good(&[put(1, 0, 1), expires(1, 1), none(4), nothing(6, 7)]);
    // What is not known to have happened may have.
    let perhaps = unknown(Ask::Touch(7), 2);
    for version in [101, 301] {
        good(&[put(1, 0, 1), perhaps, found(1, version, 6)]);
    }
    good(&[unknown(Ask::Put(1), 0), touch(7, 2, 301), found(1, 301, 4)]);
    good(&[put(1, 0, 1), perhaps, expires(7, 4), nothing(6, 7)]);
    bad(&[put(1, 0, 1), perhaps, expires(1, 4), found(1, 301, 5), nothing(7, 8)]);
}

#[test]
fn an_unseen_value_may_have_been_there() {
    let twice = [put(1, 0, 1), delete(true, 2, 3), delete(true, 4, 5)];
    bad(&twice);
    good(&[&twice[..], &[unknown(Ask::Put(2), 0)]].concat());
    good(&[&twice[..], &[unknown(Ask::PutIfAbsent(2), 0)]].concat());
    good(&[&twice[..], &[unknown(Ask::Add(2), 0)]].concat());
    bad(&[&twice[..], &[unknown(Ask::PutIfVersion { version: 101, value: 2 }, 0)]].concat());
    bad(&[&twice[..], &[unknown(Ask::Put(2), 4), get(2, 9, 9)]].concat());
    bad(&[&twice[..], &[delete(true, 6, 7), unknown(Ask::Put(2), 0)]].concat());
    good(&[
        unknown(Ask::PutIfAbsent(2), 0),
        absent(1, 1, 2, Answer::Refused(Some(50))),
        unknown(Ask::PutIfVersion { version: 50, value: 3 }, 0),
        get(3, 4, 5),
    ]);
}

#[test]
fn unknown_adds_make_sums() {
    let adds = [unknown(Ask::Add(3), 0), unknown(Ask::Add(5), 0)];
    for (sum, right) in [(0, true), (3, true), (5, true), (8, true), (2, false), (11, false)] {
        let history = [&adds[..], &[add(100, 10, 11, sum)]].concat();
        assert_eq!(check(&history.into(), BUDGET).is_linearizable(), right, "{sum}");
    }
    good(&[unknown(Ask::Put(1), 0), unknown(Ask::Add(5), 0), {
        known(Ask::Get, 4, 5, Answer::Found(Some((6, 100))))
    }]);
}

#[test]
fn operations_of_one_client_may_overlap() {
    let mut lanes = [put(1, 0, 9), put(2, 1, 8), get(1, 2, 3), get(2, 4, 5)];
    lanes.iter_mut().for_each(|operation| operation.client = 1);
    good(&lanes);
    lanes[3].ask = Ask::Get;
    lanes.swap(2, 3);
    good(&lanes);
}

#[test]
fn keys_are_judged_one_by_one() {
    let other = Operation { key: 2, ..get(1, 2, 3) };
    bad(&[put(1, 0, 1), other]);
    let verdict = check(&vec![put(1, 0, 1), other].into(), BUDGET);
    assert!(matches!(verdict, Verdict::Violation(violation) if violation.key == 2));
}

#[test]
fn a_budget_that_does_not_suffice_is_no_pass() {
    let history: History = vec![put(1, 0, 1), put(2, 2, 3), put(3, 4, 5), get(3, 6, 7)].into();
    assert_eq!(check(&history, 3), Verdict::Linearizable);
    let verdict = check(&history, 2);
    assert!(!verdict.is_linearizable());
    assert!(verdict.to_string().contains("ended here"), "{verdict}");
    assert!(
        matches!(verdict, Verdict::Exhausted { key: 1, blocked, .. } if *blocked == put(3, 4, 5))
    );
}

/// Fifty clients died, each in a PUT or a DELETE, and then one answer is wrong. Each subset of the
/// fifty might explain it, so the search must not look at subsets.
#[test]
fn many_unknown_outcomes_are_not_many_orders() {
    let mut history = Vec::new();
    for n in 0..50 {
        history.push(unknown(if n % 3 == 0 { Ask::Delete } else { Ask::Put(1000 + n) }, n));
    }
    for n in 0..200 {
        history.push(put(n + 1, 100 + 10 * n, 104 + 10 * n));
        history.push(get(n + 1, 105 + 10 * n, 109 + 10 * n));
    }
    good(&history);
    history.push(get(50, 5000, 5001));
    bad(&history);
}

#[test]
fn a_failure_is_shrunk_to_what_shows_it() {
    let mut history: Vec<Operation> = Vec::new();
    for n in 1..200 {
        history.push(put(n, 10 * n, 10 * n + 6));
        history.push(get(n, 10 * n + 5, 10 * n + 9));
        history.push(unknown(Ask::Put(1000 + n), 10 * n + 2));
    }
    good(&history);
    history[3 * 150 + 1] = get(149, 10 * 151 + 7, 10 * 151 + 9);
    let left = shrink(&history.clone().into());
    bad(left.operations());
    assert!(left.len() <= 4, "{}", timeline(&left));
    let Verdict::Violation(violation) = check(&history.into(), BUDGET) else {
        panic!("it has an order");
    };
    assert_eq!(violation.blocked.outcome, Outcome::Known(Answer::Found(Some((149, 249)))));
    assert_eq!(violation.operations, 199 * 3);
}

#[test]
fn a_history_that_is_right_is_not_shrunk() {
    let history: History = vec![put(1, 0, 1), get(1, 2, 3)].into();
    assert_eq!(shrink(&history), history);
}

#[test]
fn a_timeline_is_read_from_top_to_bottom() {
    let history: History =
        vec![get(1, 40, 1_000_050), put(1, 10, 20), put(2, 25, 30), unknown(Ask::Delete, 26)]
            .into();
    let expected = "        \
        +0  c2   k1   put 1                    stored v101              |------|
       +15  c1   k1   put 2                    stored v102                                  |--------|
       +16  c9   k1   delete                   unknown                                             |..............>
       +30  c0   k1   get                      1 v101                                                        |----|  <- cannot be placed
";
    let text = timeline(&history);
    let squeeze = |text: &str| {
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let bars = |text: &str| -> Vec<String> {
        squeeze(text).iter().map(|l| l.replace(['-', '.'], "")).collect()
    };
    assert_eq!(bars(&text), bars(expected), "\n{text}");
    assert!(text.lines().last().is_some_and(|line| line.ends_with("<- cannot be placed")));
}
