//! The namespaces.

use std::ffi::OsStr;
use std::io;
use std::process::Command;

use crate::wire::{Weather, Wire};

/// Two hosts, which go with this value. Host `n`, of 1 and 2, is the network namespace `PREFIX-n`
/// with the address `10.9.0.n` at its device `eth0`.
///
/// ```no_run
/// # use loch_wire::{Hosts, Weather};
/// let hosts = Hosts::make("example", Weather::FAIR)?;
/// hosts.command(1, "ping").args(["-c", "1", "10.9.0.2"]).status().unwrap();
/// # Ok::<_, String>(())
/// ```
#[derive(Debug)]
pub struct Hosts {
    names: Vec<String>,
    wire: Option<Wire>,
}

impl Hosts {
    /// Makes them.
    ///
    /// # Errors
    /// Why they cannot be made here, in words.
    pub fn make(prefix: &str, weather: Weather) -> Result<Self, String> {
        // A namespace that somebody else has made is not removed with this value.
        let mut made = Self { names: Vec::new(), wire: None };
        for host in [1, 2] {
            let name = format!("{prefix}-{host}");
            ip(&format!("netns add {name}"))?;
            made.names.push(name);
        }
        let wire = match weather {
            Weather::FAIR => {
                let [first, second] = &made.names[..] else { unreachable!("both are made") };
                ip(&format!(
                    "link add eth0 netns {first} type veth peer name eth0 netns {second}"
                ))?;
                None
            }
            weather => {
                let failed = |error: io::Error| format!("there is no TAP device: {error}");
                let wire = Wire::begin(weather).map_err(failed)?;
                for (name, device) in made.names.iter().zip(wire.devices()) {
                    ip(&format!("link set {device} netns {name} name eth0"))?;
                }
                Some(wire)
            }
        };
        for (name, host) in made.names.iter().zip(1..) {
            ip(&format!("-n {name} address add 10.9.0.{host}/24 dev eth0"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        made.wire = wire;
        Ok(made)
    }

    /// A program on a host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn command(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host - 1]]).arg(program);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Its devices go with their namespaces.
        self.wire = None;
        for name in &self.names {
            // One that is gone already is no reason to stop.
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let ended = Command::new("ip").args(arguments.split(' ')).output();
    let ended = ended.map_err(|error| format!("there is no ip: {error}"))?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&ended.stderr).trim())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// A socket on a host.
    fn socket(hosts: &Hosts, host: usize) -> UdpSocket {
        let place = format!("/run/netns/{}", hosts.names[host - 1]);
        let opened = std::thread::spawn(move || {
            let namespace = File::open(place).unwrap();
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).unwrap();
            UdpSocket::bind((format!("10.9.0.{host}"), 9)).unwrap()
        });
        let socket = opened.join().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    }

    #[test]
    fn a_wire_delays_and_loses_as_its_weather_is() {
        const DATAGRAMS: u32 = 300;
        for (number, delay, loss) in [(0, 0, 0.0), (1, 3, 0.0), (2, 3, 0.5)] {
            let delay = Duration::from_millis(delay);
            let weather = Weather { delay, jitter: Duration::ZERO, loss };
            let prefix = format!("loch-wire-{}-{number}", std::process::id());
            let hosts = match Hosts::make(&prefix, weather) {
                Ok(hosts) => hosts,
                Err(why) => return println!("skipped: {why}"),
            };
            let [from, to] = [1, 2].map(|host| socket(&hosts, host));
            to.set_read_timeout(Some(delay + Duration::from_millis(20))).unwrap();
            // One at a time: nothing is lost because a queue is full. A host that does not find the
            // other's device, since what asks for it is lost, says so, and asks again.
            let arrives = |datagram: u32| {
                let sent = Instant::now();
                let _ = from.send_to(&datagram.to_le_bytes(), "10.9.0.2:9");
                let mut bytes = [0; 4];
                while to.recv(&mut bytes).is_ok() {
                    if u32::from_le_bytes(bytes) == datagram {
                        assert!(sent.elapsed() >= delay);
                        return true;
                    }
                }
                false
            };
            let found = Instant::now();
            while !(DATAGRAMS..).take(100).any(arrives) {
                assert!(found.elapsed() < Duration::from_secs(60), "the hosts are not joined");
            }
            let come = (0..DATAGRAMS).filter(|datagram| arrives(*datagram)).count() as f64;
            let expected = f64::from(DATAGRAMS) * (1.0 - loss);
            let difference = (come - expected).abs();
            assert!(difference <= expected * loss * 0.5, "{come} of {DATAGRAMS}, loss {loss}");
        }
    }
}
