//! Figure 20: several cards in a server, each with one link and its own keys (kv-direct §6.2).

use loch_fabric::sim::CardProfile;

use super::paper;
use super::scale::Scale;
use crate::kv_direct::report::{Cell, Table};
use crate::kv_direct::run::{Setup, measure};
use crate::kv_direct::workload::{Popularity, Source, Workload};

/// Draws by which the most loaded card is found.
const DRAWS: u64 = 100_000;

/// A card has less memory by this factor than in the other figures, because there are ten cards.
const LESS: u32 = 4;

/// Figure 20. Cards have nothing in common but the workload: each is simulated alone.
pub fn tables(scale: &Scale) -> Vec<Table> {
    let scale = &Scale { lines: scale.lines / LESS, ..*scale };
    let [get, put] = paper::TEN_CARDS_MOPS;
    let mut table = Table::new(
        "20",
        format!(
            "several cards, one link each, 10 B key-values, long-tail workload, Mops; paper: {get} \
             and {put} with 10"
        ),
        ["cards", "GET", "GET, a card", "PUT", "PUT, a card", "GET, one stream", "most loaded"],
    );
    let counts: &[u32] = if scale.is_quick { &[1, 2] } else { &[1, 4, 10] };
    for &cards in counts {
        let (gets, puts) = of_cards(scale, cards);
        let loads = shares(scale, cards);
        // The card that is saturated first limits one stream of operations.
        let stream = gets.iter().zip(&loads).map(|(mops, share)| mops / share);
        let [get, put] = [&gets, &puts].map(|all| all.iter().sum::<f64>());
        let most = loads.iter().fold(0.0, |most: f64, share| most.max(*share));
        table.row([
            u64::from(cards).into(),
            Cell::Number(get, 0),
            Cell::tenths(get / f64::from(cards)),
            Cell::Number(put, 0),
            Cell::tenths(put / f64::from(cards)),
            Cell::Number(stream.fold(f64::INFINITY, f64::min), 0),
            Cell::Number(most * f64::from(cards), 2),
        ]);
    }
    vec![table]
}

/// The keys of one card of several.
fn part(scale: &Scale, cards: u32, card: u32) -> Workload {
    let workload = scale.workload(10, Popularity::LongTail);
    Workload { keys: workload.keys * u64::from(cards), part: (cards, card), ..workload }
}

/// The throughput of GETs and of PUTs of each card, if each is saturated.
fn of_cards(scale: &Scale, cards: u32) -> (Vec<f64>, Vec<f64>) {
    let of_card = |card| {
        let workload = part(scale, cards, card);
        let card = CardProfile::KV_DIRECT.with_links(1);
        let setup = Setup { card, ..scale.setup(workload) };
        let loads = [1.0, 0.0].map(|gets| scale.saturating(Workload { gets, ..workload }));
        let measured = measure(&setup, &loads);
        (measured[0].mops(), measured[1].mops())
    };
    (0..cards).map(of_card).unzip()
}

/// The share of all operations that each card has.
fn shares(scale: &Scale, cards: u32) -> Vec<f64> {
    let mut source = Source::new(Workload { part: (1, 0), ..part(scale, cards, 0) }, scale.seed, 0);
    let mut counts = vec![0u64; cards as usize];
    for _ in 0..DRAWS {
        counts[source.processor(cards) as usize] += 1;
    }
    counts.into_iter().map(|count| count as f64 / DRAWS as f64).collect()
}
