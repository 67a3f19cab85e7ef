//! One of two hosts: a guest of `vm/run --hosts 2`, or a network namespace (`namespaces.rs`). Which
//! one this is, and how they wait for each other by files in the folder that they share, which
//! needs no wire.

pub mod clock;
pub mod config;
pub mod merge;
pub mod namespaces;
pub mod wire;

use std::path::PathBuf;

use crate::support::wait_for;
pub use config::HOSTS;

/// The folder that guests share.
const SHARED: &str = "/shared";
/// Tells a process that it is in a network namespace, and which folder is shared there.
pub const NAMESPACE: &str = "LOCH_TEST_NAMESPACE";

fn shared() -> PathBuf {
    std::env::var_os(NAMESPACE).map_or(SHARED.into(), PathBuf::from)
}

/// The fabric between the hosts.
pub fn fabric() -> &'static str {
    if std::env::var_os(NAMESPACE).is_some() { "tcp" } else { "verbs" }
}

/// A guest.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its number, from 1.
    pub host: usize,
}

impl Guest {
    /// The guest that this process is in; none anywhere else.
    pub fn this() -> Option<Self> {
        std::env::var_os(NAMESPACE).or_else(|| std::env::var_os("LOCH_VERBS_TEST"))?;
        let number = |name| std::env::var(name).ok()?.parse().ok();
        assert_eq!(number("HOSTS"), Some(HOSTS), "this test is for {HOSTS} guests");
        let host = number("HOST").expect("a guest is told its number");
        Some(Self { host })
    }

    /// Waits for the other guest, at a place that is passed once.
    pub fn meet(&self, place: &str) {
        let mark = |host| in_shared(format!("met-{place}.{host}"));
        std::fs::write(mark(self.host), "").expect("the guests share a folder");
        wait_for(place, || (1..=HOSTS).all(|host| mark(host).exists()).then_some(()));
    }

    /// Gives the other guest a text.
    pub fn tell(&self, name: &str, text: &str) {
        let [fresh, whole] = [format!("fresh-{name}"), name.into()].map(in_shared);
        std::fs::write(&fresh, text).expect("the guests share a folder");
        std::fs::rename(fresh, whole).expect("both are in that folder");
    }

    /// Waits for a text of the other guest's.
    pub fn hear(&self, name: &str) -> String {
        wait_for(name, || std::fs::read_to_string(in_shared(name.into())).ok())
    }
}

/// Something in the folder that the guests share.
pub fn in_shared(name: String) -> PathBuf {
    shared().join(name)
}
