//! The messages that the two ends exchange before there is a connection.
//!
//! Both messages travel over a channel of the caller, and come from another machine: they are plain
//! data, checked when they are used, and not trusted before.

use serde::{Deserialize, Serialize};

use crate::rights::{self, Granted};

use super::VerbsError;

/// The promise of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// RC: READs, WRITEs and atomics, each executed once or the connection breaks.
    Reliable,
    /// UC: WRITEs that may get lost.
    Unreliable,
}

/// The address of a queue pair, and the number of the first packet to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueAddress {
    /// The port's GID; on RoCE it is made of the network address.
    pub gid: [u8; 16],
    /// The port's LID; 0 on RoCE.
    pub lid: u16,
    /// The queue pair's number, of 24 bits.
    pub qp_number: u32,
    /// The first packet's sequence number, of 24 bits.
    pub psn: u32,
}

/// The request of the active end of a connection. Made by
/// [`VerbsEndpoint::offer`](super::VerbsEndpoint::offer).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The promise that the connection should make.
    pub transport: Transport,
    /// The active end.
    pub from: QueueAddress,
    /// Bytes of the largest packet that its port can carry.
    pub mtu_bytes: u32,
    /// READs and atomics that it wants to have under way at a time.
    pub rd_atomic: u8,
}

/// The answer of the passive end. Made by [`Host::accept`](super::Host::accept).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The promise of the connection: the requested one.
    pub transport: Transport,
    /// The passive end.
    pub from: QueueAddress,
    /// Bytes of a packet: the lesser value of both ports.
    pub mtu_bytes: u32,
    /// READs and atomics under way at a time: the lesser value of both ends.
    pub rd_atomic: u8,
    /// The ranges that the keys open.
    pub grants: Vec<Granted>,
}

impl Offer {
    /// Checks what can be checked without a device.
    ///
    /// # Errors
    /// [`VerbsError::Hostile`] says what cannot be.
    pub fn validate(&self) -> Result<(), VerbsError> {
        check_end(&self.from, self.mtu_bytes)
    }
}

impl Answer {
    /// Checks what can be checked without a device, for a region of `region_bytes`.
    ///
    /// # Errors
    /// [`VerbsError::Hostile`] says what cannot be.
    pub fn validate(&self, region_bytes: u64) -> Result<(), VerbsError> {
        check_end(&self.from, self.mtu_bytes)?;
        if self.transport == Transport::Reliable && self.rd_atomic == 0 {
            return Err(VerbsError::Hostile { what: "an answer without READs" });
        }
        if self.grants.iter().any(|granted| granted.address.checked_add(granted.len).is_none()) {
            return Err(VerbsError::Hostile { what: "a key for the end of all addresses" });
        }
        let ranges = self.grants.iter().map(|g| (g.offset, g.len)).collect();
        check_ranges(ranges, region_bytes)
    }
}

fn check_end(end: &QueueAddress, mtu_bytes: u32) -> Result<(), VerbsError> {
    let hostile = |what| Err(VerbsError::Hostile { what });
    if end.qp_number >> 24 != 0 || end.psn >> 24 != 0 {
        return hostile("a queue pair or sequence number of more than 24 bits");
    }
    if end.qp_number < 2 {
        return hostile("a queue pair that is the network's own");
    }
    if !mtu_bytes.is_power_of_two() || !(256..=4096).contains(&mtu_bytes) {
        return hostile("a packet size that no port has");
    }
    if end.gid == [0; 16] && end.lid == 0 {
        return hostile("an end without an address");
    }
    Ok(())
}

/// As [`rights::check_ranges`].
pub(super) fn check_ranges(ranges: Vec<(u64, u64)>, region_bytes: u64) -> Result<(), VerbsError> {
    rights::check_ranges(ranges, region_bytes).map_err(|what| VerbsError::Hostile { what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::GRANTS_MAX;
    use crate::rights::Access;

    const END: QueueAddress = QueueAddress { gid: [1; 16], lid: 0, qp_number: 17, psn: 0xFF_FFFF };

    fn offer() -> Offer {
        Offer { transport: Transport::Reliable, from: END, mtu_bytes: 1024, rd_atomic: 16 }
    }

    fn answer() -> Answer {
        let granted = |offset, len| {
            let address = 0x7000_0000 + offset;
            Granted { offset, len, access: Access::Full, address, rkey: 7 }
        };
        let grants = vec![granted(4096, 100), granted(0, 4096)];
        let transport = Transport::Reliable;
        Answer { transport, from: END, mtu_bytes: 256, rd_atomic: 1, grants }
    }

    fn hostile(result: Result<(), VerbsError>) -> &'static str {
        match result {
            Err(VerbsError::Hostile { what }) => what,
            other => panic!("{other:?} was taken"),
        }
    }

    #[test]
    fn what_is_sound_is_taken_and_survives_its_encoding() {
        assert!(offer().validate().is_ok() && answer().validate(4196).is_ok());
        let again = serde_json::to_string(&answer()).expect("it is plain data");
        assert_eq!(serde_json::from_str::<Answer>(&again).expect("it was encoded"), answer());
        let again = serde_json::to_string(&offer()).expect("it is plain data");
        assert_eq!(serde_json::from_str::<Offer>(&again).expect("it was encoded"), offer());
    }

    #[test]
    fn an_offer_that_cannot_be_is_refused() {
        let spoil: [fn(&mut Offer); 8] = [
            |o| o.from.qp_number = 1 << 24,
            |o| o.from.psn = u32::MAX,
            |o| o.from.qp_number = 0,
            |o| o.from.gid = [0; 16],
            |o| o.mtu_bytes = 0,
            |o| o.mtu_bytes = 128,
            |o| o.mtu_bytes = 8192,
            |o| o.mtu_bytes = 1500,
        ];
        for spoil in spoil {
            let mut offer = offer();
            spoil(&mut offer);
            hostile(offer.validate());
        }
    }

    #[test]
    fn an_answer_that_cannot_be_is_refused() {
        let spoil: [fn(&mut Answer); 9] = [
            |a| a.from.qp_number = u32::MAX,
            |a| a.rd_atomic = 0,
            |a| a.grants[0].len = 0,
            |a| a.grants[0].len = 101,
            |a| a.grants[0].len = u64::MAX,
            |a| a.grants[0].offset = 4095,
            |a| a.grants[0].offset = u64::MAX,
            |a| a.grants[0].address = u64::MAX - 50,
            |a| a.grants = vec![a.grants[0]; GRANTS_MAX + 1],
        ];
        for spoil in spoil {
            let mut answer = answer();
            spoil(&mut answer);
            hostile(answer.validate(4196));
        }
        assert!(answer().validate(4195).is_err(), "the region is shorter");
    }

    #[test]
    fn rights_are_a_ladder() {
        use Access::{Full, Read, ReadAtomic};
        assert!(Full.includes(ReadAtomic) && ReadAtomic.includes(Read) && Read.includes(Read));
        assert!(!Read.includes(ReadAtomic) && !ReadAtomic.includes(Full));
    }
}
