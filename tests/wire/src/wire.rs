//! The wire: a thread that carries frames between two TAP devices.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::RngExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// As networks of data centres have it.
const MTU: u16 = 9000;
/// The longest frame: with its header of Ethernet.
const FRAME_BYTES_MAX: usize = MTU as usize + 64;
/// Frames that wait for their time, each way. More are lost, as in a switch that is full.
const UNDER_WAY_MAX: usize = 1 << 14;
/// Frames that are taken from one device before the other has its turn.
const FRAMES_PER_TURN: usize = 64;
/// How long the thread sleeps at most, before it looks whether it is to end.
const SLEEP: Duration = Duration::from_millis(50);

/// What a wire does to frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weather {
    /// How long a frame is under way, each way, at least.
    pub delay: Duration,
    /// How much longer, at most: each frame as chance has it, in the order in which they were sent.
    pub jitter: Duration,
    /// The share of frames that are lost.
    pub loss: f64,
}

impl Weather {
    /// Nothing is delayed or lost.
    pub const FAIR: Self = Self { delay: Duration::ZERO, jitter: Duration::ZERO, loss: 0.0 };
}

/// A frame that is under way.
#[derive(Debug)]
struct Frame {
    due: Instant,
    bytes: Vec<u8>,
}

/// One way of the wire.
#[derive(Debug, Default)]
struct Way(VecDeque<Frame>);

/// The wire between two devices of this process. It ends with this value.
#[derive(Debug)]
pub struct Wire {
    names: [String; 2],
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Makes both devices, in the namespace of this thread, and joins them.
    pub fn begin(weather: Weather) -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // A device's name has up to 15 characters.
        let names = ["a", "b"].map(|end| format!("lw{}{end}{number}", std::process::id()));
        let [a, b] = &names;
        let devices = [device(a)?, device(b)?];
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let thread = thread::Builder::new().name("wire".into()).spawn(move || {
            // The system would add 50 us to each delay.
            let exact = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            exact.unwrap_or_else(|error| eprintln!("the wire delays for longer: {error}"));
            if let Err(error) = carry(&devices, weather, &until) {
                eprintln!("the wire broke: {error}");
            }
        })?;
        Ok(Self { names, is_over, thread: Some(thread) })
    }

    /// The names of the devices.
    pub fn devices(&self) -> &[String; 2] {
        &self.names
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn device(name: &str) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new().name(name).layer(Layer::L2).mtu(MTU).build_sync()?;
    device.set_nonblocking(true)?;
    Ok(device)
}

/// Carries frames until it is told to end.
fn carry(devices: &[SyncDevice; 2], weather: Weather, is_over: &AtomicBool) -> io::Result<()> {
    let [a, b] = devices;
    let mut ways = [(a, b, Way::default()), (b, a, Way::default())];
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    while !is_over.load(Ordering::Relaxed) {
        for (from, to, way) in &mut ways {
            way.take(from, weather, &mut buffer)?;
            way.hand_over(to)?;
        }
        let now = Instant::now();
        let due = ways.iter().filter_map(|(_, _, way)| way.0.front()).map(|frame| frame.due).min();
        let rest = due.map_or(SLEEP, |due| due.saturating_duration_since(now)).min(SLEEP);
        let rest = Timespec::try_from(rest).map_err(io::Error::other)?;
        let mut watched = devices.each_ref().map(|it| PollFd::new(it, PollFlags::IN));
        match poll(&mut watched, Some(&rest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Way {
    /// Takes the frames that a host has sent.
    fn take(&mut self, from: &SyncDevice, weather: Weather, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..FRAMES_PER_TURN {
            let len = match from.recv(buffer) {
                Ok(len) => len,
                Err(error) if is_nothing(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut chance = rand::rng();
            if self.0.len() == UNDER_WAY_MAX || chance.random_bool(weather.loss) {
                continue;
            }
            let delay = weather.delay + weather.jitter.mul_f64(chance.random());
            let last = self.0.back().map(|frame| frame.due);
            let due = last.into_iter().fold(Instant::now() + delay, Instant::max);
            self.0.push_back(Frame { due, bytes: buffer[..len].to_vec() });
        }
        Ok(())
    }

    /// Hands over those whose time has come.
    fn hand_over(&mut self, to: &SyncDevice) -> io::Result<()> {
        let now = Instant::now();
        while let Some(frame) = self.0.pop_front_if(|frame| frame.due <= now) {
            match to.send(&frame.bytes) {
                Ok(_) => (),
                // It is lost, as over a wire whose other end is off.
                Err(error) if is_nothing(&error) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether there is nothing to receive, or nobody who receives: the device is down, or not up yet.
fn is_nothing(error: &io::Error) -> bool {
    let is_down = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    error.kind() == ErrorKind::WouldBlock || is_down
}
