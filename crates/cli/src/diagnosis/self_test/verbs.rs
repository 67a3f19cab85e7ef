//! The verbs over an RDMA device: a host and an endpoint in this process, whose packets leave the
//! card and come back to it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use loch_fabric::shm::Region;
use loch_fabric::verbs::{
    Accepted, Access, Datagrams, Device, Grant, Host, Transport, VerbsEndpoint, VerbsError,
};
use loch_fabric::{Buf, Messages, RemoteAddr, UnreliableWrites};

use super::verb::{HOME, REGION_BYTES, THERE, VERBS, WRITTEN, seen, stamped};
use super::{Trial, Trying};

/// A WRITE whose arrival is not reported.
const UNRELIABLE: (&str, usize) = ("UC WRITE", 64);
/// A message and its answer.
const DATAGRAM: (&str, usize) = ("UD SEND+RECV ping-pong", 64);
/// How long a message may take.
const ARRIVES_WITHIN: Duration = Duration::from_millis(200);
/// Messages in a row that are awaited before one counts as failed: they may get lost.
const MESSAGE_TRIES: u64 = 3;

/// A host's memory, and a connection to it.
struct Rig {
    region: Arc<Region>,
    endpoint: VerbsEndpoint,
    _accepted: Accepted,
    _host: Host,
}

impl Rig {
    fn new(device: &Arc<Device>, transport: Transport) -> Result<Self, VerbsError> {
        let memory = || {
            let region = Region::anonymous(REGION_BYTES);
            let failed = |error| std::io::Error::other(error);
            let action = "get memory";
            let region = region.map_err(failed);
            region.map(Arc::new).map_err(|source| VerbsError::Os { action, source })
        };
        let region = memory()?;
        let host = Host::new(device.clone(), region.clone())?;
        let endpoint = VerbsEndpoint::new(device.clone(), HOME, memory()?)?;
        let offer = endpoint.offer_over(THERE, transport)?;
        let all = Grant { offset: 0, len: REGION_BYTES, access: Access::Full };
        let (accepted, answer) = host.accept(&offer, &[all])?;
        endpoint.connect(THERE, REGION_BYTES, &answer)?;
        Ok(Self { region, endpoint, _accepted: accepted, _host: host })
    }
}

/// Tries every verb over a device.
pub fn over_verbs(device: &Arc<Device>) -> Vec<Trial> {
    let reliable = VERBS.into_iter().map(|verb| {
        trial(device, verb.name(), move |device| {
            let rig = Rig::new(&device, Transport::Reliable)?;
            Ok(verb.try_out(&rig.endpoint, &rig.region))
        })
    });
    let unreliable = [
        trial(device, UNRELIABLE, |device| write_unreliable(&device)),
        trial(device, DATAGRAM, |device| send_and_receive(&device)),
    ];
    reliable.chain(unreliable).collect()
}

fn trial(
    device: &Arc<Device>,
    name: (&'static str, usize),
    work: impl FnOnce(Arc<Device>) -> Result<Trying, VerbsError> + Send + 'static,
) -> Trial {
    let device = device.clone();
    Trial::of("verbs", name, move || work(device))
}

fn write_unreliable(device: &Arc<Device>) -> Result<Trying, VerbsError> {
    let rig = Rig::new(device, Transport::Unreliable)?;
    let at = RemoteAddr::new(THERE, WRITTEN);
    let mut trying = Trying::new();
    while let Some(number) = trying.next() {
        let begun = Instant::now();
        let posted = rig.endpoint.write_unreliable(at, &stamped(UNRELIABLE.1, number));
        let posted = posted.map_err(|error| error.to_string());
        let result = posted.and_then(|()| seen(&rig.endpoint, &rig.region, number));
        trying.count(begun.elapsed(), result);
    }
    Ok(trying)
}

/// Sends a message from one end to the other and back.
fn send_and_receive(device: &Arc<Device>) -> Result<Trying, VerbsError> {
    let (here, there) = (Datagrams::new(device)?, Datagrams::new(device)?);
    let to_here = there.peer(&here.address())?;
    let to_there = here.peer(&there.address())?;
    let mut trying = Trying::new();
    while let Some(number) = trying.next() {
        let message = stamped(DATAGRAM.1, number);
        let begun = Instant::now();
        let there_and_back = pass(&here, to_there, &there, &message)
            .and_then(|()| pass(&there, to_here, &here, &message));
        trying.count(begun.elapsed(), there_and_back);
    }
    Ok(trying)
}

/// Sends a message until it has arrived; late copies of an earlier one are ignored.
fn pass<M: Messages>(from: &M, to: M::Peer, end: &M, message: &[u8]) -> Result<(), String> {
    for _ in 0..MESSAGE_TRIES {
        from.send(to, message).map_err(|error| error.to_string())?;
        let until = Instant::now() + ARRIVES_WITHIN;
        while let Some((_, buf)) = before(until, end.receive(Buf::new())) {
            if buf[..] == *message {
                return Ok(());
            }
        }
    }
    Err(format!("{MESSAGE_TRIES} messages in a row were lost"))
}

/// The output of a future, if it is ready by that time.
fn before<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        if Instant::now() >= until {
            return None;
        }
    }
}
