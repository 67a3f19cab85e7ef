//! A client of workers: how long it waits, and its errors when there is no answer or a
//! strange one. Its requests go to a script that says what becomes of each, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use loch_engines::EngineError;
use loch_engines::epoch::Session;
use loch_engines::limits::KEY_BYTES_MAX;
use loch_engines::operation::{Conditional, Operation, Outcome, PutOptions, Version};
use loch_engines::requests::message::{Expected, ReplyHead};
use loch_engines::requests::packet::{Answered, OutcomeWriter};
use loch_engines::requests::*;
use loch_fabric::sim::{Faults, Profile, SimEndpoint, World};
use loch_fabric::{Buf, Fabric, FabricError, MessageAddress, RegionId, RemoteAddr, lanes};

const HOME: RegionId = RegionId(0);
const FAR: RegionId = RegionId(1);
/// The worker that is asked: another node's, so that its incarnation cannot be looked at.
const TO: WorkerId = WorkerId { node: 1, worker: 0 };
const SESSION: u64 = 77;
const TIMING: Timing = Timing { resend_us: 100, timeout_us: 20_000 };
const KEY: &[u8] = b"key";
const PUT: Operation<'_> =
    Operation::Put { value: b"value", options: PutOptions { expires_at_ms: None } };

/// Makes the reply to a request.
type Replies = Box<dyn Fn(&Ticket) -> (ReplyHead, Buf)>;

/// The fate of a request that is sent.
enum Fate {
    /// It is lost, or nobody answers.
    Silence,
    /// It is answered with this outcome.
    Answer(Answered<'static>),
    /// A worker of this incarnation says that it was for another one.
    Stale(u32),
    /// It is answered by this head and packet.
    Reply(Replies),
    /// The fabric says so.
    Fails(FabricError),
}

/// Both ways at once: what was sent, and what becomes of it.
#[derive(Clone)]
struct Script {
    fates: Rc<RefCell<VecDeque<Fate>>>,
    /// When each request was sent, and what it was.
    sent: Rc<RefCell<Vec<(u64, Ticket)>>>,
    /// The replies, and whether each was polled for: a reply is there at the second poll.
    came: Rc<RefCell<Vec<(ReplyHead, Buf, bool)>>>,
    greetings: Rc<Cell<u64>>,
    /// Whether the worker has to be found, and how often it was, by each of the two ways.
    seeks: Rc<Cell<bool>>,
    found: Rc<Cell<u64>>,
}

impl Script {
    /// Once they are used up, there is silence.
    fn new(fates: impl IntoIterator<Item = Fate>) -> Self {
        let fates = Rc::new(RefCell::new(fates.into_iter().collect()));
        let (sent, came, greetings) = (Rc::default(), Rc::default(), Rc::default());
        Self { fates, sent, came, greetings, seeks: Rc::default(), found: Rc::default() }
    }

    fn reply(&self, head: ReplyHead, mut message: Buf) {
        head.finish(Seal::CHECKSUM, &mut message);
        self.came.borrow_mut().push((head, message, false));
    }

    fn tickets(&self) -> Vec<Ticket> {
        self.sent.borrow().iter().map(|(_, ticket)| *ticket).collect()
    }
}

impl<F: Fabric> RequestPath<F> for Script {
    async fn send(
        &self,
        fabric: &F,
        to: WorkerId,
        _: (RemoteAddr, u32),
        message: Buf,
    ) -> (Buf, Result<Sent, FabricError>) {
        assert_eq!(to, TO);
        let ticket = Ticket::read(&message, Seal::CHECKSUM).expect("it is whole");
        self.sent.borrow_mut().push((fabric.now_us(), ticket));
        let done = match self.fates.borrow_mut().pop_front() {
            None | Some(Fate::Silence) => Ok(Sent::Written),
            Some(Fate::Fails(error)) => Err(error),
            Some(Fate::Answer(outcome)) => {
                let packet = OutcomeWriter::one(&outcome);
                self.reply(ReplyHead::new(&ticket, 1, 9, packet.len()), packet);
                Ok(Sent::Written)
            }
            Some(Fate::Stale(incarnation)) => {
                self.reply(ReplyHead::new(&ticket, 1, incarnation, 0), Buf::new());
                Ok(Sent::Written)
            }
            Some(Fate::Reply(head)) => {
                let (head, packet) = head(&ticket);
                self.reply(head, packet);
                Ok(Sent::Written)
            }
        };
        (message, done)
    }

    fn meet(&self, _: &F, worker: WorkerId, _: &MessageAddress) {
        assert_eq!(worker, TO);
        self.found.set(self.found.get() + 1);
    }
}

impl<F: Fabric> ReplyPath<F> for Script {
    fn poll(
        &self,
        _: &F,
        expected: &Expected,
        message: &mut Buf,
    ) -> Result<Option<ReplyHead>, FabricError> {
        let mut came = self.came.borrow_mut();
        let found = came.iter().position(|(head, ..)| expected.is(head));
        let Some(at) = found else { return Ok(None) };
        if !std::mem::replace(&mut came[at].2, true) {
            return Ok(None);
        }
        let (head, bytes, _) = came.remove(at);
        *message = bytes;
        Ok(Some(head))
    }

    fn introduce(&self, _: &F, _: WorkerId, _: impl FnOnce() -> Buf) -> Result<(), FabricError> {
        self.greetings.set(self.greetings.get() + 1);
        Ok(())
    }

    fn seeks(&self) -> bool {
        self.seeks.get()
    }

    fn meet(&self, _: &F, worker: WorkerId, _: &MessageAddress) {
        assert_eq!(worker, TO);
        self.found.set(self.found.get() + 1);
    }
}

/// Two nodes with a worker each; the client is the first one's.
struct Rig {
    world: World,
    endpoint: Rc<SimEndpoint>,
    requester: Rc<Requester<Script, Script>>,
    script: Script,
}

impl Rig {
    fn new(fates: impl IntoIterator<Item = Fate>) -> Self {
        Self::with(256, fates)
    }

    fn with(request_bytes: u32, fates: impl IntoIterator<Item = Fate>) -> Self {
        let service = Service {
            workers: 1,
            window: 1,
            replies: 2,
            sessions_per_node: 2,
            request_bytes,
            reply_bytes: 256,
            ..Service::default()
        };
        let area = Area::new(service, 2).unwrap();
        let world = World::new(1, Profile::CONNECTX_3_56, Faults::default());
        let bases = [HOME, FAR].map(|node| {
            assert_eq!(world.add_node(area.bytes()), node);
            RemoteAddr::new(node, 0)
        });
        let map = Arc::new(RequestMap::new(area, bases.to_vec()));
        let endpoint = Rc::new(world.endpoint(world.add_process(HOME)));
        let (script, session) = (Script::new(fates), Session::new(HOME, 1, SESSION));
        let requester = Requester::new(map, &session, 0, script.clone(), script.clone(), TIMING);
        Self { world, endpoint, requester: Rc::new(requester), script }
    }

    /// Runs a program and returns its result.
    fn run<T: 'static, P: Future<Output = T> + 'static>(
        &self,
        program: impl FnOnce(Rc<Requester<Script, Script>>, Rc<SimEndpoint>) -> P,
    ) -> T {
        let out = Rc::new(RefCell::new(None));
        let (told, work) = (out.clone(), program(self.requester.clone(), self.endpoint.clone()));
        let process = self.endpoint.process();
        self.world.start(process, async move { *told.borrow_mut() = Some(work.await) });
        while !self.world.has_ended(process) {
            assert!(self.world.step() && self.world.now_ns() < 1_000_000_000, "it ends");
        }
        out.take().expect("it has ended")
    }

    fn call(&self, operation: Operation<'static>) -> Result<Reply, EngineError> {
        self.run(|requester, endpoint| async move {
            requester.call(&*endpoint, TO, KEY, operation, Buf::new()).await
        })
    }
}

fn stored(version: u64) -> Fate {
    Fate::Answer(Ok(Outcome::Stored(Version::from_u64(version))))
}

/// The worker's incarnation is known.
fn met() -> [Fate; 2] {
    [Fate::Stale(9), stored(1)]
}

fn is_ambiguous<T>(told: &Result<T, EngineError>) -> bool {
    matches!(told, Err(EngineError::Ambiguous(_)))
}

const OUT_OF_TIME: EngineError = EngineError::Timeout { timeout_us: TIMING.timeout_us };

#[test]
fn a_request_is_sent_again_after_times_that_double_until_its_time_is_up() {
    let rig = Rig::new(met());
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(1)));
    rig.script.sent.borrow_mut().clear();
    assert!(is_ambiguous(&rig.call(PUT)));
    let sent = rig.script.sent.borrow();
    let waited = sent.windows(2).map(|pair| pair[1].0 - pair[0].0);
    for (waited, expected) in waited.zip([100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400]) {
        assert!((expected..expected + 20).contains(&waited), "{waited} for {expected}");
    }
    assert_eq!(sent.len(), 9);
    for (attempt, (_, ticket)) in sent.iter().enumerate() {
        assert_eq!((ticket.number, ticket.attempt), (sent[0].1.number, attempt as u8));
    }
    assert_eq!(rig.requester.counts().resent.get(), 8);
    assert_eq!(rig.requester.timing(), TIMING);
}

/// It introduces itself when it begins, and again whenever there is no answer.
#[test]
fn a_client_introduces_itself_until_it_is_answered() {
    let rig = Rig::new([Fate::Silence].into_iter().chain(met()).chain([stored(2)]));
    rig.call(PUT).unwrap();
    let greeted = rig.script.greetings.get();
    assert_eq!(greeted, 2, "at first, and when it was not answered");
    rig.call(PUT).unwrap();
    assert_eq!(rig.script.greetings.get(), greeted);
    let [answered, stale] = [&rig.requester.counts().answered, &rig.requester.counts().stale];
    assert_eq!((answered.get(), stale.get()), (3, 1));
}

/// Nobody executes a request for no incarnation, and what could not be reached got nothing.
#[test]
fn what_cannot_have_arrived_is_not_ambiguous() {
    assert_eq!(Rig::new([]).call(PUT).err(), Some(OUT_OF_TIME));
    let unreachable = |_| Fate::Fails(FabricError::Unreachable { region: FAR });
    let rig = Rig::new(met().into_iter().chain((0..99).map(unreachable)));
    rig.call(PUT).unwrap();
    assert_eq!(rig.call(PUT).err(), Some(OUT_OF_TIME));
    // It goes on as soon as the worker can be reached.
    let rig = Rig::new(met().into_iter().chain((0..3).map(unreachable)).chain([stored(2)]));
    rig.call(PUT).unwrap();
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(2)));
}

#[test]
fn what_may_have_arrived_is_ambiguous_if_it_changes_anything() {
    let unknown = FabricError::OutcomeUnknown { at: RemoteAddr::new(FAR, 0) };
    for fate in [Fate::Silence, Fate::Fails(unknown)] {
        let rig = Rig::new(met().into_iter().chain([fate]));
        rig.call(PUT).unwrap();
        assert!(is_ambiguous(&rig.call(PUT)));
        assert_eq!(rig.call(Operation::Get).err(), Some(OUT_OF_TIME));
    }
}

/// A fabric that refuses to send says why, unless an earlier attempt may have changed something.
#[test]
fn an_error_of_the_fabric_is_told_if_nothing_can_have_been_changed() {
    let refused = FabricError::AccessDenied { at: RemoteAddr::new(FAR, 0) };
    for (silence, operation) in [(0, PUT), (0, Operation::Get), (1, Operation::Get), (1, PUT)] {
        let silence = (0..silence).map(|_| Fate::Silence);
        let rig = Rig::new(met().into_iter().chain(silence).chain([Fate::Fails(refused)]));
        rig.call(PUT).unwrap();
        let told = rig.call(operation);
        match rig.requester.counts().resent.get() {
            1 if !operation.is_read() => assert!(is_ambiguous(&told)),
            _ => assert_eq!(told.err(), Some(refused.into())),
        }
    }
}

/// A worker that started anew refuses what was meant for the one before it, which may have done it
/// if it was sent more than once.
#[test]
fn a_worker_that_started_anew_makes_what_was_sent_twice_ambiguous() {
    let renewed = || Fate::Stale(10);
    let rig = Rig::new(met().into_iter().chain([renewed(), stored(2)]));
    rig.call(PUT).unwrap();
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(2)));
    let tickets = rig.script.tickets();
    assert_eq!(tickets.iter().map(|it| it.worker).collect::<Vec<_>>(), [0, 9, 9, 10]);
    assert_eq!(tickets.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let rig = Rig::new(met().into_iter().chain([Fate::Silence, renewed()]));
    rig.call(PUT).unwrap();
    assert!(is_ambiguous(&rig.call(PUT)));
    // Reads do not mind, nor does a request that was for no incarnation.
    let absent = || Fate::Answer(Ok(Outcome::Absent));
    let rig = Rig::new(met().into_iter().chain([Fate::Silence, renewed(), absent()]));
    rig.call(PUT).unwrap();
    assert!(rig.call(Operation::Get).unwrap().into_done().unwrap().into_found().unwrap().is_none());
    let rig = Rig::new([Fate::Silence].into_iter().chain(met()));
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(1)));
}

/// The reply to an older request, of another worker, or to the session before this one.
#[test]
fn a_reply_to_something_else_is_not_taken() {
    let wrong: [fn(&mut Ticket, &mut u16); 4] = [
        |ticket, _| ticket.number += 1,
        |ticket, _| ticket.session += 1,
        |_, source| *source = 0,
        |ticket, source| (ticket.number, *source) = (ticket.number + 1, 0),
    ];
    for wrong in wrong {
        let reply = move |ticket: &Ticket| {
            let (mut ticket, mut source) = (*ticket, 1);
            wrong(&mut ticket, &mut source);
            let packet = OutcomeWriter::one(&Ok(Outcome::Stored(Version::from_u64(5))));
            (ReplyHead::new(&ticket, source, 9, packet.len()), packet)
        };
        let rig = Rig::new([Fate::Reply(Box::new(reply)), stored(6)]);
        assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(6)));
    }
}

#[test]
fn keys_and_values_that_do_not_fit_are_refused_before_anything_is_sent() {
    let ask = |rig: &Rig, key: usize, value: usize| {
        rig.run(|requester, endpoint| async move {
            let (key, value) = (vec![1; key], vec![2; value]);
            let operation = Operation::Put { value: &value, options: PutOptions::default() };
            requester.call(&*endpoint, TO, &key, operation, Buf::new()).await.map(|_| ())
        })
    };
    // A slot has 256 bytes, 72 of which may be neither key nor value.
    for (key, value) in [(1, 183), (100, 84), (184, 0)] {
        assert_eq!(ask(&Rig::new(met()), key, value), Ok(()));
    }
    let rig = Rig::new([]);
    assert_eq!(ask(&rig, 0, 1), Err(EngineError::KeyEmpty));
    for key in [185, KEY_BYTES_MAX] {
        assert_eq!(ask(&rig, key, 0), Err(EngineError::KeyTooLong { len: key, max: 184 }));
    }
    for (key, len) in [(1, 184), (184, 1)] {
        let error = EngineError::ValueTooLong { len, max: 184 - key as u64 };
        assert_eq!(ask(&rig, key, len as usize), Err(error));
    }
    assert!(rig.script.tickets().is_empty());
    let bytes = Service::request_bytes_for(KEY_BYTES_MAX as u64, 1).unwrap();
    assert_eq!(ask(&Rig::with(bytes, met()), KEY_BYTES_MAX, 1), Ok(()));
    let len = KEY_BYTES_MAX + 1;
    assert_eq!(
        ask(&Rig::with(bytes, met()), len, 0),
        Err(EngineError::KeyTooLong { len, max: KEY_BYTES_MAX })
    );
}

/// A look at where the worker receives costs a round trip.
#[test]
fn a_worker_is_looked_for_at_first_and_when_it_does_not_answer() {
    let rig = Rig::new(met().into_iter().chain([stored(2), Fate::Silence, stored(3)]));
    rig.script.seeks.set(true);
    let found = || rig.script.found.get();
    rig.world.store(rig.requester.map().incarnation_addr(TO), 9);
    // Its incarnation stands beside, so the first request is for the right one.
    rig.script.fates.borrow_mut().pop_front();
    rig.call(PUT).unwrap();
    assert_eq!((found(), rig.script.tickets()[0].worker), (2, 9));
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(2)));
    assert_eq!(found(), 2);
    assert_eq!(rig.call(PUT).unwrap().outcome().unwrap().stored(), Ok(Version::from_u64(3)));
    assert_eq!(found(), 4);
}

/// The window has one place. A lane that is done does not take it from one that waits for it.
#[test]
fn lanes_that_wait_for_a_place_get_it_in_turn_or_run_out_of_time() {
    let rig = Rig::new(met().into_iter().chain((2..9).map(stored)));
    rig.call(PUT).unwrap();
    let order = Rc::new(RefCell::new(Vec::new()));
    let done = order.clone();
    let free = rig.run(|requester, endpoint| async move {
        let lane = |name: &'static str, calls: u64| {
            let (requester, endpoint, done) = (requester.clone(), endpoint.clone(), done.clone());
            async move {
                for _ in 0..calls {
                    requester.call(&*endpoint, TO, KEY, PUT, Buf::new()).await.unwrap();
                    done.borrow_mut().push(name);
                }
            }
        };
        let free = requester.is_free(TO);
        let mut lanes = [Box::pin(lane("a", 3)), Box::pin(lane("b", 2)), Box::pin(lane("c", 1))];
        let mut ended = [false; 3];
        let mut was_free = false;
        std::future::poll_fn(|cx| {
            for (lane, ended) in lanes.iter_mut().zip(&mut ended) {
                *ended = *ended || lane.as_mut().poll(cx).is_ready();
            }
            was_free |= !ended[0] && requester.is_free(TO);
            if ended == [true; 3] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        (free, was_free, requester.is_free(TO))
    });
    assert_eq!(*order.borrow(), ["a", "b", "c", "a", "b", "a"]);
    assert_eq!(free, (true, false, true));
}

#[test]
fn a_lane_that_gets_no_place_in_time_says_so() {
    let rig = Rig::new(met());
    rig.call(PUT).unwrap();
    let told = rig.run(|requester, endpoint| async move {
        let first = requester.call(&*endpoint, TO, KEY, PUT, Buf::new());
        let second = requester.call(&*endpoint, TO, KEY, PUT, Buf::new());
        let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
        let began = endpoint.now_us();
        let mut told = (None, None);
        let mut is_begun = false;
        std::future::poll_fn(|cx| {
            // The first has the place when it begins, and still has it when the time of both is up.
            for is_first in [!is_begun, is_begun] {
                if is_first
                    && told.0.is_none()
                    && let Poll::Ready(done) = first.as_mut().poll(cx)
                {
                    told.0 = Some(done.map(|_| ()));
                }
                if !is_first
                    && told.1.is_none()
                    && let Poll::Ready(done) = second.as_mut().poll(cx)
                {
                    told.1 = Some((done.map(|_| ()), endpoint.now_us() - began));
                }
            }
            is_begun = true;
            if told.0.is_some() && told.1.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        (told.0.unwrap(), told.1.unwrap())
    });
    let (first, (second, waited)) = told;
    assert!(is_ambiguous(&first));
    // It was not sent, so it was not done.
    assert_eq!(second, Err(OUT_OF_TIME));
    assert!((TIMING.timeout_us..TIMING.timeout_us + 100).contains(&waited), "{waited}");
}

type Asks = fn(&Reply) -> Result<String, EngineError>;

/// A worker that answers another question is damaged, or lies.
#[test]
fn each_question_has_its_answer_and_no_other() {
    let answers = [
        Outcome::Found { version: Version::from_u64(3), expires_at_ms: Some(4), value: b"found" },
        Outcome::Absent,
        Outcome::Contained(true),
        Outcome::Contained(false),
        Outcome::Stored(Version::from_u64(6)),
        Outcome::Refused(Some(Version::from_u64(7))),
        Outcome::Refused(None),
        Outcome::Deleted(true),
        Outcome::Deleted(false),
        Outcome::Scalar(8),
        Outcome::Vector(b"elements"),
    ];
    let asks: [(Asks, &[usize]); 5] = [
        (|reply| reply.outcome().and_then(Outcome::contained).map(|it| it.to_string()), &[2, 3]),
        (|reply| reply.outcome().and_then(Outcome::stored).map(|it| it.to_string()), &[4]),
        (
            |reply| reply.outcome().and_then(Outcome::conditional).map(|it| format!("{it:?}")),
            &[4, 5, 6],
        ),
        (|reply| reply.outcome().and_then(Outcome::deleted).map(|it| it.to_string()), &[7, 8]),
        (|reply| reply.outcome().and_then(Outcome::scalar).map(|it| it.to_string()), &[9]),
    ];
    let expected = |ask: usize, answer: usize| match (ask, answers[answer]) {
        (2, Outcome::Stored(version)) => format!("{:?}", Conditional::Done(version)),
        (2, Outcome::Refused(version)) => format!("{:?}", Conditional::Refused(version)),
        (_, Outcome::Contained(is) | Outcome::Deleted(is)) => is.to_string(),
        (_, Outcome::Stored(version)) => version.to_string(),
        (_, Outcome::Scalar(number)) => number.to_string(),
        (_, other) => unreachable!("{other:?}"),
    };
    for (number, outcome) in answers.into_iter().enumerate() {
        let rig = Rig::new([Fate::Answer(Ok(outcome))]);
        let reply = rig.call(Operation::Get).unwrap();
        assert_eq!(reply.outcome(), Ok(outcome));
        for (ask, (says, own)) in asks.iter().enumerate() {
            match says(&reply) {
                Ok(said) => assert_eq!(said, expected(ask, number)),
                Err(EngineError::Damaged { .. }) => assert!(!own.contains(&number)),
                Err(error) => panic!("{error}"),
            }
        }
        let done = reply.into_done().unwrap();
        assert_eq!(done.outcome(), outcome);
        let found = done.into_found();
        match number {
            0 => {
                let value = found.unwrap().unwrap();
                assert_eq!((&value[..], value.version()), (&b"found"[..], Version::from_u64(3)));
                assert_eq!(value.expires_at_ms(), Some(4));
            }
            1 => assert!(found.unwrap().is_none()),
            _ => assert!(matches!(found, Err(EngineError::Damaged { .. }))),
        }
    }
}

/// One outcome is wanted, and the worker tells none, a failure, two, or nonsense.
#[test]
fn a_packet_of_other_outcomes_than_one_is_no_answer() {
    let told = |packet: Buf| {
        let reply = move |ticket: &Ticket| {
            let head = ReplyHead::new(ticket, 1, 9, packet.len());
            (head, packet.clone())
        };
        Rig::new([Fate::Reply(Box::new(reply))]).call(PUT).unwrap().into_done()
    };
    let failure = Failure::ValueTooLong { len: 9, max: 8 };
    let error = EngineError::ValueTooLong { len: 9, max: 8 };
    assert_eq!(told(OutcomeWriter::one(&Err(failure))).err(), Some(error));
    let mut two = OutcomeWriter::default();
    [1, 2].iter().for_each(|version| two.push(&Ok(Outcome::Stored(Version::from_u64(*version)))));
    for packet in [two.take(), Buf::from(vec![0]), Buf::from(vec![0x80])] {
        assert!(matches!(told(packet), Err(EngineError::Damaged { .. })));
    }
}

/// The output of a future, unless it is dropped after so many polls.
async fn within<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// There is one number at the worker. A lane that has it and a lane that waits for it are dropped,
/// however far they have come, and leave it to the next.
#[test]
fn requests_that_are_dropped_anywhere_leave_their_slots_to_others() {
    for polls in (1..40).chain([64, 100, 256]) {
        let rig = Rig::new(met());
        rig.script.seeks.set(true);
        rig.call(PUT).unwrap();
        let script = rig.script.clone();
        let found = rig.run(move |requester, endpoint| async move {
            let call = |operation| requester.call(&*endpoint, TO, KEY, operation, Buf::new());
            // Nobody answers.
            let both = [PUT, PUT].map(|put| within(polls, call(put)));
            lanes::run(2, both, |ended| assert!(ended.is_none())).await;
            script.fates.borrow_mut().push_back(Fate::Answer(Ok(Outcome::Absent)));
            call(Operation::Get).await
        });
        assert!(found.unwrap().into_done().unwrap().into_found().unwrap().is_none(), "{polls}");
        // It came at the first attempt.
        assert_eq!(rig.script.tickets().last().map(|ticket| ticket.attempt), Some(0), "{polls}");
    }
}
