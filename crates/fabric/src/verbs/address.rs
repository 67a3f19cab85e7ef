//! Addresses of datagrams, as verbs have them and as plain data that every backend has.

use serde::{Deserialize, Serialize};

use crate::messages::AddressKind;
use crate::{FabricError, MessageAddress, Result};

/// The address of a thread's datagrams. Plain data, checked when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The port's GID; zero on an InfiniBand network that the LID is enough for.
    pub gid: [u8; 16],
    /// The port's LID; 0 on RoCE.
    pub lid: u16,
    /// The queue pair's number, of 24 bits.
    pub qp_number: u32,
    /// The key that every message to it has to carry: its card drops others. It is drawn for each
    /// queue pair, so strangers have to guess 31 bits; it does not protect against an attacker who
    /// sees a message.
    pub qkey: u32,
}

impl Address {
    /// The GID as two words, and a word of the LID and the queue pair's number; and the key.
    pub(super) fn to_plain(self) -> MessageAddress {
        let gid = u128::from_le_bytes(self.gid);
        let end = u64::from(self.lid) << 32 | u64::from(self.qp_number);
        let words = [gid as u64, (gid >> 64) as u64, end];
        MessageAddress::new(AddressKind::QueuePair, words).with_key(self.qkey)
    }

    pub(super) fn from_plain(address: &MessageAddress) -> Result<Self> {
        let ([low, high, end], qkey) = address.of_keyed(AddressKind::QueuePair)?;
        let why = "its LID has more than 16 bits";
        let lid = u16::try_from(end >> 32).map_err(|_| FabricError::BadAddress { why })?;
        let gid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        Ok(Self { gid, lid, qp_number: end as u32, qkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_data_is_all_of_an_address(gid: [u8; 16], lid: u16, qp_number: u32, qkey: u32) {
            let address = Address { gid, lid, qp_number, qkey };
            prop_assert_eq!(Address::from_plain(&address.to_plain()), Ok(address));
        }

        #[test]
        fn words_name_one_address_or_none(
            (low, high, end, key) in any::<(u64, u64, u64, u32)>(), cut in 0u32..64,
        ) {
            let plain = MessageAddress::new(AddressKind::QueuePair, [low, high, end >> cut]);
            let plain = plain.with_key(key);
            match Address::from_plain(&plain) {
                Ok(address) => prop_assert_eq!(address.to_plain(), plain),
                Err(error) => prop_assert!(end >> cut >> 48 != 0, "{error}"),
            }
        }
    }
}
