//! Searches that take a moment: the protocol holds in them, and its mutants and the published
//! protocol do not. `make model` runs the others.

use std::cell::RefCell;
use std::collections::HashSet;

use loch_models::configurations::{self, Configuration, Subject};
use loch_models::explore::{Model, Verdict, explore};
use loch_models::loch::state::{At, State};
use loch_models::loch::{Loch, Mutation, Setup};
use loch_models::published::Published;
use loch_models::report;
use loch_models::script::Key::{A, B};
use loch_models::script::Op;

fn named(name: &str) -> Configuration {
    let found = configurations::all().into_iter().find(|c| c.name == name);
    found.unwrap_or_else(|| panic!("no configuration is called {name}"))
}

fn steps(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Violated(way) => way.steps.len(),
        verdict => panic!("not violated but {verdict:?}"),
    }
}

#[test]
fn the_protocol_holds() {
    for name in [
        "insert-delete-read",
        "three-inserts",
        "inserts-crash",
        "move-into-a-home-that-comes-free",
        "torn-reads",
        "put-if-version-beside-puts",
        "cached-put-if-version",
    ] {
        let row = report::run(&named(name));
        assert!(row.as_expected, "{name}: {}", row.verdict());
        assert!(row.outcome.terminal > 0, "{name}: nobody finishes");
    }
}

#[test]
fn one_client_alone_takes_the_steps_it_must() {
    let script = vec![Op::Put(A, 1), Op::Get(A), Op::Delete(A)];
    let setup = Setup { scripts: vec![script], ..Setup::default() };
    let outcome = explore(&Loch::new(setup), 1000);
    assert_eq!(outcome.verdict, Verdict::Holds);
    // PUT at home: the entry, three READs, two READs, the CAS. GET: the hit, and the entry; to have
    // read other slots before comes to the same. DELETE: three READs, the CAS, the note.
    assert_eq!((outcome.depth, outcome.terminal), (7 + 2 + 5, 1));
}

#[test]
fn a_mutation_that_nobody_notices_is_a_failure_of_the_checker() {
    // Without a second client, the tentative stage cannot be missed.
    let setup = Setup {
        scripts: vec![vec![Op::Put(A, 1), Op::Put(B, 2), Op::Get(A)]],
        mutation: Some(Mutation::NoTentativeInsert),
        home_insert: false,
        ..Setup::default()
    };
    let lonely = Configuration { subject: Subject::Mutant(setup), ..named("mutant-no-tentative") };
    let row = report::run(&lonely);
    assert_eq!(row.outcome.verdict, Verdict::Holds);
    assert!(!row.as_expected && row.verdict() == "WRONG: holds");
}

/// A model that notes which steps its clients come to.
struct Watched {
    model: Loch,
    steps: RefCell<HashSet<At>>,
}

impl Model for Watched {
    type State = State;

    fn initial(&self) -> State {
        self.model.initial()
    }

    fn successors(&self, state: &State, told: bool, emit: &mut dyn FnMut(String, State)) {
        self.model.successors(state, told, emit);
    }

    fn violation(&self, state: &State) -> Option<String> {
        self.steps.borrow_mut().extend(state.clients.iter().map(|client| client.at));
        self.model.violation(state)
    }

    fn canonical(&self, state: &mut State) {
        self.model.canonical(state);
    }

    fn show(&self, state: &State) -> String {
        self.model.show(state)
    }
}

#[test]
fn every_step_of_the_protocol_is_taken() {
    let mut taken = HashSet::new();
    for (name, states) in [
        ("move-crashes", 20_000),
        ("move-with-same-filter", 20_000),
        ("torn-reads", 20_000),
        ("pin-beside-updates", 2_000),
        ("cached-put-if-version", 20_000),
        ("settle-beside-inserts", 20_000),
        ("insert-delete-read-anywhere", 30_000),
        ("scrub-tentative", 40_000),
        ("evict-beside-put", 10_000),
        ("replace-beside-insert", 2_000),
        ("insert-with-no-room", 20_000),
        ("tentative-then-delete", 50_000),
        ("move-insert-delete-anywhere", 30_000),
    ] {
        let Subject::Protocol(setup) = named(name).subject else { panic!("{name} is no protocol") };
        let model = Watched { model: Loch::new(setup), steps: RefCell::default() };
        explore(&model, states);
        taken.extend(model.steps.into_inner());
    }
    let mut missing: Vec<_> = At::all().filter(|at| !taken.contains(at)).collect();
    // With these an operation begins: they are taken in the step that leaves Idle.
    missing.retain(|at| !matches!(at, At::EvictLook | At::MoveSource | At::Settle | At::ScrubPick));
    assert!(missing.is_empty(), "nobody comes to {missing:?}");
}

#[test]
fn mutants_are_found_out_in_a_shortest_way() {
    // The depths are those of a model that was written independently of this one.
    for (name, depth) in [
        ("mutant-one-look", 10),
        ("mutant-move-spares-tentative", 21),
        ("mutant-move-keeps-home-tag", 20),
        ("mutant-finished-before-dropped", 5),
        ("mutant-untagged-empty", 15),
    ] {
        let row = report::run(&named(name));
        assert!(row.as_expected, "{name}: {}", row.verdict());
        assert_eq!(steps(&row.outcome.verdict), depth, "{name}");
    }
}

#[test]
fn the_published_protocol_fails_where_it_is_known_to() {
    for (name, depth) in [
        ("F1-crash-blocks-writers", 5),
        ("F2-abort-blocks-itself", 5),
        ("F3-abort-deletes", 21),
        ("F4-empty-comes-back", 17),
        ("F6-late-cas", 13),
        ("F7-clocks-and-cache", 17),
        ("F7b-clocks-and-migrate", 24),
    ] {
        let row = report::run(&named(name));
        assert!(row.as_expected, "{name}: {}", row.verdict());
        assert_eq!(steps(&row.outcome.verdict), depth, "{name}");
    }
}

#[test]
fn tagged_empty_words_mend_what_untagged_ones_broke() {
    let Subject::Flaw(setup) = named("F4-empty-comes-back").subject else {
        panic!("it is a flaw of the published protocol");
    };
    let mended = loch_models::published::Setup { tagged_empty: true, ..setup };
    assert_eq!(explore(&Published::new(mended), 100_000).verdict, Verdict::Holds);
}

#[test]
fn a_trace_tells_every_step() {
    let row = report::run(&named("F4-empty-comes-back"));
    let Verdict::Violated(way) = &row.outcome.verdict else { panic!("it is violated") };
    let text = report::tell(way);
    assert!(text.contains("not linearizable"), "{text}");
    assert!(text.ends_with("client 1 GET(A): READ slot 0: EMPTY; returns ABSENT\n"), "{text}");
    assert!(text.contains("clear source: CAS slot 1 d0 -> EMPTY ok\n        => 0: d2{A=9?}"));
}

#[test]
fn names_are_no_part_of_a_state() {
    // What a client writes has fresh generations and tags; but when it has taken its value away
    // again, the table is as it was.
    let setup = Setup { scripts: vec![vec![Op::Put(A, 1), Op::Delete(A)]], ..Setup::default() };
    let model = Loch::new(setup);
    let mut state = model.initial();
    let mut next = Some(state.clone());
    while let Some(mut after) = next.take() {
        model.canonical(&mut after);
        state = after;
        model.successors(&state, false, &mut |_, after| next = Some(after));
    }
    assert!(state.clients[0].op == 2 && state.slots == model.initial().slots);
}
