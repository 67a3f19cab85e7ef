//! The orderings of shared words, each in one place and under a name that says its purpose.
//!
//! The protocols rest on five handshakes, all model-checked with loom, the fourth one in `ring.rs`:
//! * **reuse against re-read**: an owner changes an entry's generation before it writes the entry
//!   anew ([`store_before`]); a reader re-reads the generation after its copy ([`load_after`]). If
//!   the reader copied one new byte, it sees the new generation.
//! * **announce against grace**: a client announces its epoch and then loads the region's
//!   ([`announce`], [`load`]); a client that wants a grace period adds to the region's epoch and
//!   then loads the announcements ([`fetch_add`], [`load`]). At least one of the two sees the
//!   other.
//! * **pin against reuse**: a reader announces a pin and then loads the index word ([`announce`],
//!   [`load`]); a client that reuses memory sees a note that was stored after the word had changed
//!   ([`compare_swap`], [`load`]), and after a fence loads the pins. If the reader saw the word
//!   unchanged, the other sees its pin, until the reader has loaded the last byte
//!   ([`store_after`]).
//! * **publish against take**: a sender writes a record and then its word ([`store_after`]); a
//!   receiver loads the word and then the record ([`load`]). If it sees the word, it sees the whole
//!   record. In the other direction, a receiver has finished with the bytes that it gives back.
//! * **sleep against ring**: a thread says in its bell that it sleeps and then looks for messages
//!   for the last time ([`arm`], [`load`]); a thread that sent it a message then looks at the bell
//!   ([`before_bells`], [`is_to_wake`]). At least one of the two sees the other: the message is
//!   found, or its sender wakes the receiver.

use crate::sync::{AtomicU64, Ordering, fence};

/// Loads a word; no later access is executed before it.
#[inline(always)]
pub(super) fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// Loads a word after every earlier load, of whatever bytes.
#[inline(always)]
pub(super) fn load_after(word: &AtomicU64) -> u64 {
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed)
}

/// Stores a word before every later store, of whatever bytes.
#[inline(always)]
pub(super) fn store_before(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
    fence(Ordering::Release);
}

/// Stores a word after every earlier load and store, of whatever bytes.
#[inline(always)]
pub(super) fn store_after(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
}

/// Stores a word before every later load.
#[inline(always)]
pub(super) fn announce(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Replaces `expect` by `new`; returns the word that was there.
#[inline(always)]
pub(super) fn compare_swap(word: &AtomicU64, expect: u64, new: u64) -> u64 {
    match word.compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(old) | Err(old) => old,
    }
}

/// Adds, wrapping, ordered with all accesses around it; returns the word that was there.
#[inline(always)]
pub(super) fn fetch_add(word: &AtomicU64, add: u64) -> u64 {
    let old = word.fetch_add(add, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    old
}

/// The bell of a thread that is awake.
const AWAKE: u64 = 0;
/// The bell of a thread that sleeps, or is about to.
pub(super) const ASLEEP: u64 = 1;

/// Says that a thread is about to sleep. It has to look for messages once more before it sleeps.
#[inline]
pub(super) fn arm(bell: &AtomicU64) {
    // Every change of a bell is a read-modify-write, so they follow one another.
    bell.swap(ASLEEP, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The thread is awake. It sees what was stored before its bell was rung.
#[inline]
pub(super) fn disarm(bell: &AtomicU64) {
    bell.swap(AWAKE, Ordering::Acquire);
}

/// Whether nobody has rung since the bell was armed. If somebody has, the caller sees what was
/// stored before.
#[inline]
pub(super) fn is_armed(bell: &AtomicU64) -> bool {
    bell.load(Ordering::Acquire) == ASLEEP
}

/// Called between sending messages and looking at the bells of their receivers.
#[inline(always)]
pub(super) fn before_bells() {
    fence(Ordering::SeqCst);
}

/// Whether the thread with this bell has to be woken. Only one caller is told so.
#[inline(always)]
pub(super) fn is_to_wake(bell: &AtomicU64) -> bool {
    // The usual thread is awake, and a look does not take the line away from it.
    bell.load(Ordering::Relaxed) == ASLEEP && bell.swap(AWAKE, Ordering::Release) == ASLEEP
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn relaxed(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }

    /// An entry of one payload word, installed through an index word, and reused while it is read.
    #[test]
    fn loom_a_reader_of_reused_bytes_sees_the_new_generation() {
        loom::model(|| {
            let entry = Arc::new([AtomicU64::new(1), AtomicU64::new(10)]);
            let owner = entry.clone();
            let writer = thread::spawn(move || {
                store_before(&owner[0], 2);
                owner[1].store(20, Ordering::Relaxed);
            });
            let generation = load(&entry[0]);
            let payload = relaxed(&entry[1]);
            if load_after(&entry[0]) == 1 {
                assert_eq!((generation, payload), (1, 10), "a torn entry was accepted");
            }
            writer.join().expect("the owner does not panic");
        });
    }

    /// A reader of the index word sees all stores that were made before the installing CAS.
    #[test]
    fn loom_an_installed_entry_is_seen_whole() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
            let owner = words.clone();
            let writer = thread::spawn(move || {
                store_before(&owner[1], 2);
                owner[2].store(20, Ordering::Relaxed);
                compare_swap(&owner[0], 0, 7);
            });
            if load(&words[0]) == 7 {
                assert_eq!((relaxed(&words[1]), relaxed(&words[2])), (2, 20));
            }
            writer.join().expect("the owner does not panic");
        });
    }

    /// A reader that sees a client idle also sees all stores of that client.
    #[test]
    fn loom_who_is_seen_idle_has_stored_all() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(1), AtomicU64::new(0)]);
            let client = words.clone();
            let working = thread::spawn(move || {
                client[1].store(20, Ordering::Relaxed);
                store_after(&client[0], 0);
            });
            if load(&words[0]) == 0 {
                assert_eq!(relaxed(&words[1]), 20, "a store after the operation's end");
            }
            working.join().expect("the client does not panic");
        });
    }

    /// An index word, a note, a pin and a value: one client unlinks the value, another one uses its
    /// memory again, and a third reads it in place.
    #[test]
    fn loom_pinned_bytes_are_not_reused() {
        loom::model(|| {
            let words = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
            let [index, note, pin, value] = [0, 1, 2, 3];
            let unlinker = words.clone();
            let unlinking = thread::spawn(move || {
                compare_swap(&unlinker[index], 0, 1);
                unlinker[note].store(1, Ordering::Release);
            });
            let reader = words.clone();
            let reading = thread::spawn(move || {
                announce(&reader[pin], 1);
                if load(&reader[index]) == 0 {
                    assert_eq!(relaxed(&reader[value]), 0, "it was used again under its pin");
                }
                store_after(&reader[pin], 0);
            });
            if load(&words[note]) == 1 {
                fence(Ordering::SeqCst);
                if load(&words[pin]) == 0 {
                    words[value].store(20, Ordering::Relaxed);
                }
            }
            unlinking.join().expect("the unlinking client does not panic");
            reading.join().expect("the reader does not panic");
        });
    }

    /// A client that wakes and a grace period that starts do not miss each other.
    #[test]
    fn loom_a_grace_period_and_a_waking_client_see_each_other() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let client = words.clone();
            let waking = thread::spawn(move || {
                announce(&client[1], 1);
                relaxed(&client[0])
            });
            fetch_add(&words[0], 1);
            let announced = relaxed(&words[1]);
            let epoch = waking.join().expect("the client does not panic");
            assert!(announced == 1 || epoch == 1, "neither side saw the other");
        });
    }

    /// A thread that sleeps at a bell. The system lets a thread sleep only if its bell is armed at
    /// that moment: likewise `park` returns at once if `unpark` came first. A wake-up that got lost
    /// is a deadlock, which loom reports.
    struct Sleeper {
        bell: AtomicU64,
        message: AtomicU64,
        thread: thread::Thread,
    }

    impl Sleeper {
        /// The thread that calls this is the one that sleeps.
        fn new() -> Arc<Self> {
            let (bell, message) = (AtomicU64::new(AWAKE), AtomicU64::new(0));
            Arc::new(Self { bell, message, thread: thread::current() })
        }

        /// Waits until `message` has at least this value.
        fn receive(&self, least: u64) {
            loop {
                arm(&self.bell);
                if load(&self.message) >= least {
                    return disarm(&self.bell);
                }
                if is_armed(&self.bell) {
                    thread::park();
                }
            }
        }

        fn ring(&self) {
            before_bells();
            if is_to_wake(&self.bell) {
                self.thread.unpark();
            }
        }
    }

    /// One thread sends twice; the receiver sleeps before each message.
    #[test]
    fn loom_a_thread_that_falls_asleep_misses_no_message() {
        loom::model(|| {
            let sleeper = Sleeper::new();
            let sender = sleeper.clone();
            let sending = thread::spawn(move || {
                for message in 1..=2 {
                    store_after(&sender.message, message);
                    sender.ring();
                }
            });
            sleeper.receive(1);
            sleeper.receive(2);
            sending.join().expect("the sender does not panic");
        });
    }

    /// Two threads send, and only one of them wakes the receiver, which then sees both messages.
    /// Budget: two preemptions.
    #[test]
    fn loom_of_two_senders_one_wakes_the_receiver_for_both() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let sleeper = Sleeper::new();
            let senders = [0, 1].map(|_| {
                let sleeper = sleeper.clone();
                thread::spawn(move || {
                    sleeper.message.fetch_add(1, Ordering::Release);
                    sleeper.ring();
                })
            });
            sleeper.receive(2);
            for sender in senders {
                sender.join().expect("a sender does not panic");
            }
        });
    }
}
