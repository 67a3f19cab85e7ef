//! Packets of kv-direct's operations and replies: whatever the bytes, they are read up to where
//! they make no sense, and what was read is written in as many bytes or fewer, and read again.

use loch_engines::limits::{KEY_BYTES_MAX, PACKET_OPS_MAX};
use loch_engines::requests::packet::{
    Answered, Cursor, Malformed, OutcomeWriter, Outcomes, Packed, Writer,
};

/// Bytes as a packet of operations, and as one of replies, as many as the first two bytes say.
///
/// # Panics
/// If something is read that is not read again, or is written longer than it was.
pub fn kv_direct_packet(bytes: &[u8]) {
    operations(bytes);
    if let Some((count, replies)) = bytes.split_first_chunk::<2>() {
        self::replies(replies, usize::from(u16::from_le_bytes(*count)));
    }
}

fn operations(bytes: &[u8]) {
    let Ok(cursor) = Cursor::new(bytes) else {
        return;
    };
    let all: Vec<Result<Packed, Malformed>> = cursor.all(bytes).collect();
    assert!((1..=PACKET_OPS_MAX).contains(&all.len()));
    let known: Vec<Packed> = all.iter().map_while(|one| one.ok()).collect();
    assert!(all[known.len()..].iter().all(Result::is_err), "reading ends at the first error");
    let mut packet = Writer::default();
    for one in &known {
        let (key, operation) = (one.key(bytes), one.operation(bytes));
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        assert_eq!(operation.is_read(), one.is_read());
        let len = packet.len_with(key, &operation);
        packet.push(key, &operation);
        assert_eq!(packet.bytes().len(), len);
    }
    if known.is_empty() {
        return;
    }
    assert!(packet.bytes().len() <= bytes.len(), "a writer uses every flag it can");
    assert_eq!(packet.is_read(), known.iter().all(Packed::is_read));
    let again: Vec<Packed> = Cursor::new(packet.bytes())
        .expect("it was written")
        .all(packet.bytes())
        .map(|one| one.expect("it was written"))
        .collect();
    assert_eq!(again.len(), known.len());
    for (one, again) in known.iter().zip(again) {
        assert_eq!(again.key(packet.bytes()), one.key(bytes));
        assert_eq!(again.operation(packet.bytes()), one.operation(bytes));
    }
}

fn replies(bytes: &[u8], count: usize) {
    let all: Vec<Result<Answered<'_>, Malformed>> = Outcomes::new(count).all(bytes).collect();
    assert_eq!(all.len(), count, "each operation has a reply, or an error");
    let known: Vec<Answered<'_>> = all.iter().map_while(|one| one.ok()).collect();
    assert!(all[known.len()..].iter().all(Result::is_err), "reading ends at the first error");
    let mut packet = OutcomeWriter::default();
    for reply in &known {
        packet.push(reply);
    }
    let again = Outcomes::new(known.len()).all(packet.bytes()).map(|one| one.expect("written"));
    assert!(again.eq(known.iter().copied()), "a reply survives the trip");
}
