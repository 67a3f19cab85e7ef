//! Seals show that a message is whole and, where anybody can send a message, whose it is.
//!
//! The last word of a message is its seal, computed over all bytes before it. The seal of a WRITTEN
//! message is a checksum (xxh3-64), which tells a whole message from a torn one. It proves nothing
//! about the writer: rights to memory decide who can write a slot. A datagram can come from anybody
//! who reaches the queue pair. Its seal is therefore keyed (SipHash-2-4) with the **secret** of the
//! session: 128 random bits that the client and the nodes that let it in share, told over the
//! control plane. On shared memory, where mailboxes are memory too, sessions have no secret and
//! datagrams have a checksum.
//!
//! # Adversary
//! An adversary who does not know the secret has one chance in 2^64, for each datagram, to forge a
//! request or a reply that counts. Seeing all other datagrams of the session does not help: SipHash
//! is a pseudorandom function, and the direction is part of its input. The adversary can repeat and
//! withhold datagrams that he sees, which executes nothing twice ([`Inbox`](super::Inbox)), and he
//! can read them: nothing is encrypted. The nodes of the cluster, and anybody who reads a client's
//! memory, know the client's secret.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use xxhash_rust::xxh3::xxh3_64;

use crate::secret::Secret;

/// How a message is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Checksum,
    Keyed { secret: Secret, direction: u64 },
}

/// A request is never a reply, even with the same bytes.
const REQUEST: u64 = 1;
const REPLY: u64 = 2;

impl Seal {
    /// The seal of a WRITTEN message.
    pub const CHECKSUM: Self = Self(Kind::Checksum);

    /// The seal of a datagram to a worker, from a session with this secret.
    pub fn of_request(secret: Option<Secret>) -> Self {
        Self::keyed(secret, REQUEST)
    }

    /// The seal of a datagram to a client whose session has this secret.
    pub fn of_reply(secret: Option<Secret>) -> Self {
        Self::keyed(secret, REPLY)
    }

    fn keyed(secret: Option<Secret>, direction: u64) -> Self {
        secret.map_or(Self::CHECKSUM, |secret| Self(Kind::Keyed { secret, direction }))
    }

    #[inline]
    fn over(self, bytes: &[u8]) -> u64 {
        match self.0 {
            Kind::Checksum => xxh3_64(bytes),
            Kind::Keyed { secret, direction } => {
                let [first, second] = secret.words();
                let mut hasher = SipHasher24::new_with_keys(first, second);
                hasher.write(bytes);
                hasher.write_u64(direction);
                hasher.finish()
            }
        }
    }

    /// The seal of a message that begins with these bytes.
    #[inline]
    pub(super) fn word(self, before: &[u8]) -> [u8; 8] {
        self.over(before).to_le_bytes()
    }

    /// Whether the last word of a message is the seal of the bytes before it.
    #[inline]
    pub(super) fn holds(self, message: &[u8]) -> bool {
        let parts = message.split_last_chunk::<8>();
        parts.is_some_and(|(before, word)| self.over(before) == u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seal: Seal) -> Vec<u8> {
        let bytes: Vec<u8> = (0..80).collect();
        [&bytes[..], &seal.word(&bytes)].concat()
    }

    #[test]
    fn a_seal_holds_for_its_own_secret_and_direction_only() {
        let (own, other) = (Some(Secret::new([1, 2])), Some(Secret::new([1, 3])));
        let seals = [
            Seal::CHECKSUM,
            Seal::of_request(own),
            Seal::of_reply(own),
            Seal::of_request(other),
            Seal::of_reply(other),
        ];
        for (number, seal) in seals.iter().enumerate() {
            for (other, message) in seals.map(sealed).iter().enumerate() {
                assert_eq!(seal.holds(message), number == other, "{seal:?}");
            }
        }
        assert_eq!(Seal::of_request(None), Seal::CHECKSUM);
        assert!(!Seal::CHECKSUM.holds(b"short"));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let seal = Seal::of_request(Some(Secret::new([7, 9])));
        let message = sealed(seal);
        for bit in 0..message.len() * 8 {
            let mut bad = message.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!seal.holds(&bad), "bit {bit}");
        }
    }

    #[test]
    fn a_secret_is_told_to_nodes_and_not_shown() {
        let secret = Secret::new([0x1234_5678, 0x9abc_def0]);
        assert_eq!(secret.words(), [0x1234_5678, 0x9abc_def0]);
        let seal = Seal::of_reply(Some(secret));
        let shown = format!("{seal:?}");
        assert!(shown.contains("Secret(_)") && !shown.contains("305419896"), "{shown}");
    }
}
