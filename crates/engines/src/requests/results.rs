//! The outcomes of a packet's operations, which become known in any order and stand in the reply in
//! the order of the operations.

use std::ops::Range;

use loch_fabric::Buf;

use super::packet::{Answered, Failure, OUTCOME_BYTES, OutcomeWriter};
use crate::operation::Outcome;
use crate::planted::{self, Bug};

/// The outcomes that are known so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    writer: OutcomeWriter,
    /// Outcomes that became known before an earlier one, by number, with the places of their
    /// values.
    early: Vec<Option<(Answered<'static>, Range<u32>)>>,
    early_values: Vec<u8>,
    count: usize,
    written: usize,
    /// The number of bytes that the outcomes may take.
    room: usize,
}

impl Results {
    /// Begins with a packet of `count` operations, whose outcomes may take `room` bytes.
    #[inline]
    pub fn begin(&mut self, count: usize, room: usize, memory: Buf) {
        self.writer.reuse(memory);
        self.early.clear();
        self.early_values.clear();
        (self.count, self.written, self.room) = (count, 0, room);
    }

    /// Outcomes that are not known yet, or that wait for an earlier one.
    #[inline]
    pub fn left(&self) -> usize {
        self.count - self.written
    }

    /// Takes the outcome of the operation with this number.
    #[inline(always)]
    pub fn take(&mut self, number: usize, answered: &Answered<'_>) {
        let is_next = number == self.written || planted::is(Bug::ResultsAsTheyCome);
        if is_next && self.early.is_empty() {
            self.written += 1;
            push(&mut self.writer, self.room, self.count - self.written, answered);
        } else {
            self.take_one_of_many(is_next, number, answered);
        }
    }

    /// Takes an outcome if some became known before earlier ones.
    #[inline(never)]
    fn take_one_of_many(&mut self, is_next: bool, number: usize, answered: &Answered<'_>) {
        if !is_next {
            return self.keep(number, answered);
        }
        self.written += 1;
        push(&mut self.writer, self.room, self.count - self.written, answered);
        // The outcomes that waited for this one follow.
        while let Some(slot) = self.early.get_mut(self.written)
            && let Some((answered, at)) = slot.take()
        {
            self.written += 1;
            let value = &self.early_values[at.start as usize..at.end as usize];
            let answered = answered.map(|outcome| outcome.with_bytes(value));
            push(&mut self.writer, self.room, self.count - self.written, &answered);
        }
    }

    /// Whether the outcome of the operation with this number is known.
    pub fn has(&self, number: usize) -> bool {
        number < self.written || self.early.get(number).is_some_and(Option::is_some)
    }

    fn keep(&mut self, number: usize, answered: &Answered<'_>) {
        if self.early.len() < self.count {
            self.early.resize(self.count, None);
        }
        let from = self.early_values.len() as u32;
        self.early_values.extend_from_slice(bytes_of(answered));
        let at = from..self.early_values.len() as u32;
        self.early[number] = Some((answered.map(|outcome| outcome.with_bytes(&[])), at));
    }

    /// The packet of all outcomes.
    #[inline]
    pub fn packet(&mut self) -> Buf {
        debug_assert_eq!(self.left(), 0, "all outcomes are known");
        self.writer.take()
    }
}

/// Writes the next outcome, unless its room is needed for `others`.
#[inline(always)]
fn push(writer: &mut OutcomeWriter, room: usize, others: usize, answered: &Answered<'_>) {
    let room = room.saturating_sub(others * OUTCOME_BYTES);
    let bytes = bytes_of(answered).len();
    if bytes > 0 && writer.bytes().len() + bytes + OUTCOME_BYTES > room {
        writer.push(&Err(Failure::NoRoom));
    } else {
        writer.push(answered);
    }
}

/// The bytes that an outcome carries.
#[inline]
pub(super) fn bytes_of<'a>(answered: &Answered<'a>) -> &'a [u8] {
    match answered {
        Ok(Outcome::Found { value, .. } | Outcome::Vector(value)) => value,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operation::Version;
    use crate::requests::packet::Outcomes;

    fn found(value: &[u8]) -> Answered<'_> {
        Ok(Outcome::Found { version: Version::from_u64(7), expires_at_ms: None, value })
    }

    proptest! {
        /// The packet is the same, whatever the order in which the outcomes become known.
        #[test]
        fn outcomes_stand_in_the_order_of_the_operations(
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..30),
            order in any::<u64>(),
        ) {
            let mut numbers: Vec<usize> = (0..values.len()).collect();
            numbers.sort_by_key(|number| (*number as u64 + 1).wrapping_mul(order | 1));
            let [mut shuffled, mut sorted] = [Results::default(), Results::default()];
            for results in [&mut shuffled, &mut sorted] {
                results.begin(values.len(), 1 << 20, Buf::new());
            }
            for (taken, number) in numbers.iter().enumerate() {
                prop_assert!(shuffled.left() > 0 && !shuffled.has(*number));
                shuffled.take(*number, &found(&values[*number]));
                prop_assert!(shuffled.has(*number));
                sorted.take(taken, &found(&values[taken]));
            }
            prop_assert_eq!((shuffled.left(), sorted.left()), (0, 0));
            let packet = shuffled.packet();
            prop_assert_eq!(&packet[..], &sorted.packet()[..]);
            let read: Vec<_> = Outcomes::new(values.len()).all(&packet).collect();
            for (value, answered) in values.iter().zip(read) {
                prop_assert_eq!(answered, Ok(found(value)));
            }
        }

        /// Values that a reply has no room for are left out, and every outcome has its place.
        #[test]
        fn a_packet_is_never_longer_than_its_room(
            lens in prop::collection::vec(0usize..200, 1..30), room in 0usize..2_000,
        ) {
            let room = room.max(lens.len() * OUTCOME_BYTES);
            let mut results = Results::default();
            results.begin(lens.len(), room, Buf::new());
            let value = [7; 200];
            for (number, len) in lens.iter().enumerate() {
                results.take(number, &found(&value[..*len]));
            }
            let packet = results.packet();
            prop_assert!(packet.len() <= room, "{} of {room}", packet.len());
            let read: Vec<_> = Outcomes::new(lens.len()).all(&packet).map(Result::unwrap).collect();
            for (len, answered) in lens.iter().zip(&read) {
                let is_whole = *answered == found(&value[..*len]);
                prop_assert!(is_whole || *len > 0 && *answered == Err(Failure::NoRoom));
            }
            let all = lens.iter().map(|len| len + OUTCOME_BYTES).sum::<usize>() + OUTCOME_BYTES;
            prop_assert!(all > room || read.iter().all(Result::is_ok), "there is room for all");
        }
    }
}
