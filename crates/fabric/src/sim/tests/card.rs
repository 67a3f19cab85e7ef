//! Programmable cards: the rates and times that follow from the numbers of their profile.

use super::*;
use crate::lanes;
use crate::sim::{CardOp, CardProfile, SimCard};

const CARD: CardProfile = CardProfile::KV_DIRECT;

/// A world with a card, and logic on it.
fn with_card(profile: CardProfile, seed: u64) -> (Lab, ProcessId, SimCard) {
    let lab = Lab::of(Profile::KV_DIRECT_40, 1, seed, Faults::default());
    let (card, process) = (lab.add_card(profile), lab.add_process(HERE));
    lab.make_logic(process, card);
    let card = lab.card(card, process);
    (lab, process, card)
}

/// Nanoseconds that `operation` takes on a card that does nothing else.
fn takes<P>(profile: CardProfile, seed: u64, operation: impl FnOnce(SimCard) -> P) -> f64
where
    P: Future<Output = ()> + 'static,
{
    let (lab, process, card) = with_card(profile, seed);
    let (world, ended) = (lab.world.clone(), Rc::new(Cell::new(0)));
    let (operation, end) = (operation(card), ended.clone());
    lab.start(process, async move {
        operation.await;
        end.set(world.now_ns());
    });
    lab.finish();
    assert!(lab.has_ended(process));
    ended.get() as f64
}

/// Operations in a microsecond, `width` at a time.
fn rate(profile: CardProfile, width: usize, operation: fn(&SimCard, u64) -> CardOp) -> f64 {
    const FOR_NS: u64 = 100_000;
    let (lab, process, card) = with_card(profile, 1);
    let done = Rc::new(Cell::new(0u64));
    let count = done.clone();
    lab.start(process, async move {
        let work = (0..).map(|number| operation(&card, number));
        lanes::run(width, work, |()| count.set(count.get() + 1)).await;
    });
    lab.run_for(FOR_NS / 10);
    let before = done.get();
    lab.run_for(FOR_NS);
    (done.get() - before) as f64 / (FOR_NS as f64 / 1e3)
}

#[track_caller]
fn assert_near(is: f64, should: f64, share: f64) {
    assert!((is / should - 1.0).abs() <= share, "{is:.3} is not {should:.3} +- {share}");
}

#[test]
fn reads_take_what_the_paper_measured() {
    let cached = takes(CARD, 1, |card| async move { card.dma_read_cached(64).await });
    assert_near(cached, 800.0, 0.002);
    let each = |seed| takes(CARD, seed, |card| async move { card.dma_read(64).await });
    let times: Vec<f64> = (0..400).map(each).collect();
    assert_near(times.iter().sum::<f64>() / times.len() as f64, 1050.0, 0.02);
    assert!(times.iter().all(|ns| (800.0..=1301.0).contains(ns)), "{times:?}");
    assert!(times.iter().any(|ns| *ns < 850.0) && times.iter().any(|ns| *ns > 1250.0));
}

#[test]
fn tags_limit_random_reads_to_60_million_a_link() {
    let reads = |links| rate(CARD.with_links(links), 1024, |card, _| card.dma_read(64));
    assert_near(reads(1), 60.0, 0.03);
    assert_near(reads(2), 120.0, 0.03);
}

#[test]
fn without_tags_and_credits_the_link_limits_reads_to_87_million() {
    let one = CARD.with_links(1);
    assert_near(one.on_links_per_us(64), 87.0, 0.01);
    let free = CardProfile { tags: 1000, read_credits: 1000, ..one };
    assert_near(rate(free, 512, |card, _| card.dma_read(64)), 87.0, 0.01);
    // 92 under way are what fills the link (§2.4), if all take as long.
    let even = CardProfile { read_ns: 1050.0, random_ns: 0.0, ..free };
    assert_near(rate(even, 92, |card, _| card.dma_read(64)), 87.0, 0.01);
    assert_near(rate(even, 46, |card, _| card.dma_read(64)), 43.5, 0.02);
    // Credits are back when the root complex answers, before tags are.
    let credits = CardProfile { read_credits: 32, ..even };
    let answers_ns = 1050.0 - one.on_link_ns(64);
    assert_near(rate(credits, 512, |card, _| card.dma_read(64)), 32e3 / answers_ns, 0.02);
}

#[test]
fn large_reads_fill_the_link_with_few_tags() {
    let one = CARD.with_links(1);
    for bytes in [256, 512] {
        let few = CardProfile { tags: 40, ..one };
        let per_us = rate(
            few,
            256,
            if bytes == 256 { |c, _| c.dma_read(256) } else { |c, _| c.dma_read(512) },
        );
        assert_near(per_us, one.on_links_per_us(bytes), 0.02);
    }
    // Twice the request's limit is two requests, which two links share.
    let both = takes(CARD, 1, |card| async move { card.dma_read_cached(1024).await });
    let one = takes(one, 1, |card| async move { card.dma_read_cached(1024).await });
    assert_near(one - both, CARD.on_link_ns(512), 0.05);
}

#[test]
fn writes_are_limited_by_the_link_and_by_credits() {
    let one = CARD.with_links(1);
    for (bytes, write) in [
        (64, (|card, _| card.dma_write(64)) as fn(&SimCard, u64) -> CardOp),
        (256, |card, _| card.dma_write(256)),
        (1024, |card, _| card.dma_write(1024)),
    ] {
        assert_near(rate(one, 512, write), one.on_links_per_us(bytes), 0.01);
    }
    let few = CardProfile { write_credits: 8, ..one };
    let held_ns = one.on_link_ns(64) + one.write_credit_ns;
    assert_near(rate(few, 512, |card, _| card.dma_write(64)), 8e3 / held_ns, 0.02);
    // Posted: it is over long before a READ would be.
    let ns = takes(CARD, 1, |card| async move { card.dma_write(64).await });
    assert_eq!(ns, CARD.on_link_ns(64).ceil());
}

#[test]
fn reads_and_writes_share_the_way_up_alone() {
    let one = CARD.with_links(1);
    let mixed = rate(one, 512, |card, number| match number % 2 {
        0 => card.dma_read(64),
        _ => card.dma_write(64),
    });
    // A READ and a WRITE go up in 116 bytes; READs come down meanwhile, and their tags allow 61.
    assert_near(mixed / 2.0, 61.0, 0.03);
}

#[test]
fn own_memory_and_the_clock_have_their_rates() {
    assert_near(rate(CARD, 512, |card, _| card.dram_read(64)), 200.0, 0.01);
    assert_near(rate(CARD, 512, |card, _| card.dram_write(64)), 200.0, 0.01);
    assert_near(rate(CARD, 512, |card, _| card.cycle()), 180.0, 0.01);
    assert_near(takes(CARD, 1, |card| async move { card.dram_read(64).await }), 150.0, 0.01);
}

#[test]
fn what_was_begun_goes_on_without_its_future() {
    let (lab, process, card) = with_card(CARD, 3);
    lab.start(process, async move {
        drop(card.dma_read(4096));
        (0..1000).for_each(|_| drop(card.dma_write(256)));
        card.dma_write(64).await;
    });
    lab.finish();
    assert!(lab.has_ended(process));
    let bytes = (1000.0 * CARD.on_link_ns(256) + CARD.on_link_ns(64)) / 2.0;
    assert!(lab.now_ns() as f64 >= bytes, "{}", lab.now_ns());
}

#[test]
fn a_waker_gives_logic_a_turn_at_the_next_clock() {
    let (lab, process, card) = with_card(CARD, 1);
    let (here, flag) = (Rc::new(Cell::new(None::<std::task::Waker>)), Rc::new(Cell::new(false)));
    let (waiter, set) = (here.clone(), flag.clone());
    let both = async move {
        let wait = std::future::poll_fn(|cx| {
            if flag.get() {
                return std::task::Poll::Ready(());
            }
            waiter.set(Some(cx.waker().clone()));
            std::task::Poll::Pending
        });
        let wake = async {
            card.wait(100.0).await;
            set.set(true);
            here.take().expect("it waits").wake();
        };
        // The waiting lane is polled first, and learns of the event only by its waker.
        let mut lanes: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> =
            vec![Box::pin(wait), Box::pin(wake)];
        std::future::poll_fn(|cx| {
            lanes.retain_mut(|lane| lane.as_mut().poll(cx).is_pending());
            if lanes.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    lab.start(process, both);
    lab.finish();
    assert!(lab.has_ended(process));
    assert_eq!(lab.now_ns(), 106);
    assert_eq!(lab.cpu_ns(process), 0, "logic takes no processor time");
}

#[test]
fn a_seed_decides_all() {
    let run = |seed| {
        let (lab, process, card) = with_card(CARD, seed);
        lab.start(process, async move {
            lanes::run(100, (0..500).map(|_| card.dma_read(64)), |()| ()).await;
        });
        lab.finish();
        lab.now_ns()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_message_between_cards_takes_a_microsecond() {
    let lab = Lab::of(Profile::KV_DIRECT_40, 2, 1, Faults::default());
    let process = lab.go(HERE, |f| async move {
        f.write(at(THERE, 0), Buf::from(vec![1; 64])).await.1.expect("it is in bounds");
    });
    let card = lab.add_card(CARD);
    lab.make_logic(process, card);
    lab.finish();
    let on_links = Profile::KV_DIRECT_40.on_link_ns(64) + Profile::KV_DIRECT_40.on_link_ns(0);
    assert_near(lab.now_ns() as f64, 2000.0 + on_links, 0.005);
}
