//! Time: the latency of an idle fabric, and the throughput of a busy one.

use super::*;
use crate::lanes;

const PROFILE: Profile = Profile::CONNECTX_3_56;

/// Nanoseconds that `program`, usually one verb, takes on an idle fabric.
fn takes<P>(lab: &Lab, from: RegionId, program: impl FnOnce(SimEndpoint) -> P) -> f64
where
    P: Future<Output = ()> + 'static,
{
    let (began, ended) = (lab.now_ns(), Rc::new(Cell::new(0)));
    let (world, end) = (lab.world.clone(), ended.clone());
    lab.go(from, |f| {
        let program = program(f);
        async move {
            program.await;
            end.set(world.now_ns());
        }
    });
    lab.finish();
    (ended.get() - began) as f64
}

async fn read(f: SimEndpoint, at: RemoteAddr, len: usize) {
    f.read(at, len, Buf::new()).await.1.expect("it is in bounds");
}

async fn write(f: SimEndpoint, at: RemoteAddr, len: usize) {
    f.write(at, Buf::from(vec![1; len])).await.1.expect("it is in bounds");
}

#[track_caller]
fn assert_near(is: f64, should: f64, share: f64) {
    assert!((is / should - 1.0).abs() <= share, "{is:.3} is not {should:.3} +- {share}");
}

#[test]
fn a_small_read_takes_two_microseconds() {
    let lab = Lab::with(Faults::default());
    let ns = takes(&lab, HERE, |f| read(f, at(THERE, 64), 64));
    assert!((1_500.0..2_500.0).contains(&ns), "{ns}");
    let p = PROFILE;
    let posting = p.resume_ns + p.doorbell_ns + p.post_ns;
    let on_links = p.on_link_ns(0) + p.on_link_ns(64);
    let sum = (posting + 2 * p.one_way_ns + p.dma_ns) as f64 + on_links;
    assert!((ns - sum).abs() <= 2.0, "{ns} is not the sum, {sum}");
    let near = takes(&lab, THERE, |f| read(f, at(THERE, 64), 64));
    assert!(near < ns / 2.0, "a node's own memory is nearer: {near}");
}

#[test]
fn a_write_that_is_not_inline_is_fetched_first() {
    let lab = Lab::with(Faults::default());
    let len = PROFILE.inline_bytes as usize;
    let inline = takes(&lab, HERE, |f| write(f, at(THERE, 0), len));
    let longer = takes(&lab, HERE, |f| write(f, at(THERE, 0), len + 1));
    let byte = PROFILE.on_link_ns(1) - PROFILE.on_link_ns(0);
    assert!((longer - inline - PROFILE.dma_ns as f64 - byte).abs() <= 2.0, "{inline}, {longer}");
}

#[test]
fn a_slow_link_is_slow_for_its_two_nodes() {
    let lab = Lab::of(PROFILE, 3, 1, Faults::default());
    let third = RegionId(2);
    let time = |node| takes(&lab, HERE, |f| read(f, at(node, 0), 1 << 16));
    let usual = time(THERE);
    lab.slow_link(THERE, HERE, 10);
    let on_link = PROFILE.on_link_ns(1 << 16) + PROFILE.on_link_ns(0);
    assert_near(time(THERE) - usual, 9.0 * on_link, 0.01);
    assert_near(time(third), usual, 0.001);
    lab.slow_link(HERE, THERE, 1);
    assert_near(time(THERE), usual, 0.001);
}

/// Operations per microsecond of `width` lanes in each of `each` processes on every node but the
/// first.
fn rate<P>(lab: &Lab, nodes: u8, each: usize, op: fn(Rc<SimEndpoint>) -> P, for_ns: u64) -> f64
where
    P: Future<Output = ()> + 'static,
{
    const LANES: usize = 4;
    let done = Rc::new(Cell::new(0u64));
    for node in 1..nodes {
        for _ in 0..each {
            let count = done.clone();
            lab.go(RegionId(node), |f| async move {
                let f = Rc::new(f);
                let work = std::iter::repeat_with(|| op(f.clone()));
                lanes::run(LANES, work, |()| count.set(count.get() + 1)).await;
            });
        }
    }
    lab.run_for(for_ns / 5);
    let before = done.get();
    lab.run_for(for_ns);
    (done.get() - before) as f64 / (for_ns as f64 / 1e3)
}

#[test]
fn a_card_serves_so_many_messages() {
    let lab = || Lab::of(PROFILE, 13, 1, Faults::default());
    let reads = |f: Rc<SimEndpoint>| async move {
        f.read_bucket(at(HERE, 64), 4).await.expect("it is in bounds");
    };
    assert_near(rate(&lab(), 13, 8, reads, 100_000), 19.5, 0.05);
    let writes = |f: Rc<SimEndpoint>| async move {
        f.write(at(HERE, 64), Buf::from(vec![1; 32])).await.1.expect("it is in bounds");
    };
    assert_near(rate(&lab(), 13, 8, writes, 100_000), 35.0, 0.05);
    let atomics = |f: Rc<SimEndpoint>| async move {
        f.fetch_add(at(HERE, 64), 1).await.expect("it is in bounds");
    };
    assert_near(rate(&lab(), 13, 1, atomics, 200_000), 2.24, 0.05);
}

#[test]
fn a_link_carries_so_many_bytes() {
    for profile in [PROFILE, Profile::CONNECTX_3_10, Profile::CONNECTX_6_200] {
        let lab = Lab::of(profile, 5, 1, Faults::default());
        let reads = |f: Rc<SimEndpoint>| async move {
            f.read(at(HERE, 0), 1 << 16, Buf::new()).await.1.expect("it is in bounds");
        };
        let per_us = rate(&lab, 5, 1, reads, 2_000_000);
        let gbit_s = per_us * f64::from((1 << 16) * 8) / 1e3;
        assert_near(gbit_s, profile.link_gbit_s, 0.01);
    }
}

#[test]
fn a_sender_with_many_connections_is_slow() {
    let writes = |f: Rc<SimEndpoint>| async move {
        f.write(at(HERE, 64), Buf::from(vec![1; 32])).await.1.expect("it is in bounds");
    };
    let of = |processes| {
        let lab = Lab::with(Faults::default());
        rate(&lab, 2, processes, writes, 100_000)
    };
    let few = of(PROFILE.connections as usize);
    assert_near(few, 21.0, 0.05);
    assert_near(of(256) / few, 0.15, 0.1);
}

#[test]
fn a_card_is_free_until_a_verb_is_posted() {
    // A verb that a process posts at the end of a long turn must not hold up verbs that others post
    // meanwhile: the card took verbs up in the order in which the simulation heard of them.
    let lab = Lab::with(Faults::default());
    lab.go(HERE, |f| async move {
        f.work(100_000);
        write(f, at(THERE, 0), 8).await;
    });
    let times = Told::new();
    let (told, world) = (times.clone(), lab.world.clone());
    lab.go(HERE, |f| async move {
        write(f, at(THERE, 8), 8).await;
        told.tell(world.now_ns());
    });
    lab.run_for(50_000);
    let times = times.take();
    assert!(times.len() == 1 && times[0] < 5_000, "{times:?}");
    assert_eq!(lab.load(at(THERE, 0)), 0);
    lab.finish();
    assert_eq!(lab.load(at(THERE, 0)) & 1, 1);
    assert!(lab.now_ns() > 100_000);
}

#[test]
fn a_process_beside_others_has_its_share() {
    for (processes, cores, hogs, share) in [(1, 2, 3, 0.5), (2, 1, 2, 0.25), (1, 4, 3, 1.0)] {
        let lab = Lab::with(Faults::default());
        let work = |f: SimEndpoint| async move {
            loop {
                f.work(50_000);
                f.pause(0).await;
            }
        };
        let all: Vec<_> = (0..processes).map(|_| lab.go(HERE, work)).collect();
        let elsewhere = lab.go(THERE, work);
        lab.share_cores(HERE, cores, hogs);
        lab.run_for(400_000_000);
        for process in all {
            assert_near(lab.cpu_ns(process) as f64 / 400e6, share, 0.1);
        }
        assert_near(lab.cpu_ns(elsewhere) as f64 / 400e6, 1.0, 0.01);
    }
}

#[test]
fn wall_clocks_differ_and_not_too_much() {
    let lab = Lab::with(Faults { wall_skew_ms: 1000, ..Faults::default() });
    let clocks = Told::new();
    for _ in 0..50 {
        let told = clocks.clone();
        lab.go(HERE, |f| async move {
            let first = f.wall_ms();
            f.pause(3000).await;
            told.tell((first, f.wall_ms()));
        });
    }
    lab.finish();
    let clocks = clocks.take();
    assert!(clocks.iter().all(|(first, then)| then - first == 3), "all clocks go on");
    let (least, most) = (clocks.iter().min().unwrap().0, clocks.iter().max().unwrap().0);
    assert!((500..=1000).contains(&(most - least)), "{}", most - least);
}
