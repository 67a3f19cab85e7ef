//! Batches of the public interface: many GETs, or many PUTs, in as few packets as they fill.
//!
//! Operations that [lanes](super::client) ask for at the same time meet in a packet, and each has a
//! future, a buffer and a hold on the packet. The operations of a batch need none of that: they are
//! packed one after the other, and their results are handed on as they are unpacked.

use loch_fabric::{Buf, Fabric, lanes};

use super::OPERATION_BYTES;
use super::client::{Client, RESULT_BYTES};
use super::packing::{Bundle, Bundles};
use crate::error::EngineError;
use crate::kv::Kv;
use crate::operation::{Found, Operation, Outcome, PutOptions};
use crate::requests;
use crate::requests::packet::{Answered, Failure, Outcomes, strange_outcomes};

impl<F: Fabric> Client<F> {
    /// GETs many keys. `found` is called once for each key, with its index, in any order.
    ///
    /// # Errors
    /// As [`Kv::get`]. After an error no further packet is filled.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<Found<'_>>),
    ) -> Result<(), EngineError> {
        let mut alone = Vec::new();
        let get = |number: usize| (keys[number].as_ref(), Operation::Get);
        let done = self.in_packets(keys.len(), get, |number, answered| {
            match answered {
                Ok(Outcome::Found { version, expires_at_ms, value }) => {
                    found(number, Some(Found { version, value, expires_at_ms }));
                }
                Ok(Outcome::Absent) => found(number, None),
                // The results of the packet are longer than its reply can be.
                Err(Failure::NoRoom) => alone.push(number),
                Err(failure) => {
                    return Err(self.error(self.partition(keys[number].as_ref()), failure));
                }
                _ => return Err(strange_outcomes()),
            }
            Ok(())
        });
        done.await?;
        for number in alone {
            let value = self.get(keys[number].as_ref(), Buf::new()).await?;
            found(number, value.as_ref().map(Found::from));
        }
        Ok(())
    }

    /// PUTs many pairs. `stored` is called for each pair that was put, with its index and version,
    /// in any order.
    ///
    /// # Errors
    /// As [`Kv::execute`]. After an error no further packet is filled.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
        mut stored: impl FnMut(usize, u64),
    ) -> Result<(), EngineError> {
        let put = |number: usize| {
            let (key, value) = &pairs[number];
            (key.as_ref(), Operation::Put { value: value.as_ref(), options: PutOptions::default() })
        };
        let done = self.in_packets(pairs.len(), put, |number, answered| match answered {
            Ok(Outcome::Stored(version)) => {
                stored(number, version);
                Ok(())
            }
            Err(failure) => Err(self.error(self.partition(put(number).0), failure)),
            _ => Err(strange_outcomes()),
        });
        done.await
    }

    /// Asks for `count` operations, which `operation` tells, and hands on their results.
    async fn in_packets<'a>(
        &self,
        count: usize,
        operation: impl Fn(usize) -> (&'a [u8], Operation<'a>),
        mut take: impl FnMut(usize, Answered<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut bundles = self.bundles.take().unwrap_or_default();
        let (mut next, mut result) = (0, Ok(()));
        while next < count && result.is_ok() {
            let (filled, packed) = self.fill(&mut bundles, next..count, &operation);
            let asked = bundles.all[..filled].iter_mut().map(|bundle| self.ask_for(bundle));
            lanes::run(filled.max(1), asked, |answered| {
                let told =
                    answered.and_then(|(bundle, reply)| self.unpack(bundle, reply, &mut take));
                result = std::mem::replace(&mut result, Ok(())).and(told);
            })
            .await;
            next = match packed {
                Ok(packed) => packed,
                Err(refused) => {
                    result = result.and(Err(refused));
                    break;
                }
            };
        }
        self.bundles.set(Some(bundles));
        result
    }

    /// Fills packets with operations. Returns the number of packets, and the number of the first
    /// operation that found no room in them, or the error of one that the table does not take.
    fn fill<'a>(
        &self,
        Bundles { all, open }: &mut Bundles,
        numbers: std::ops::Range<usize>,
        operation: impl Fn(usize) -> (&'a [u8], Operation<'a>),
    ) -> (usize, Result<usize, EngineError>) {
        let partitions = self.requester.map().area().workers();
        open.clear();
        open.resize(partitions as usize, None);
        // As many as can be under way at once.
        let most = partitions as usize * usize::from(self.requester.map().area().service().window);
        let mut filled = 0;
        for number in numbers.clone() {
            let (key, operation) = operation(number);
            if let Err(refused) = self.check(key, &operation) {
                return (filled, Err(refused));
            }
            let partition = self.partition(key);
            let place = &mut open[partition as usize];
            let at = match place.filter(|at| self.has_room(&all[*at], key, &operation)) {
                Some(at) => at,
                None if filled == most => return (filled, Ok(number)),
                None => {
                    if filled == all.len() {
                        all.push(Bundle::default());
                    }
                    all[filled].begin(partition);
                    filled += 1;
                    filled - 1
                }
            };
            *place = Some(at);
            all[at].packet.push(key, &operation);
            all[at].numbers.push(number);
        }
        (filled, Ok(numbers.end))
    }

    /// Whether a packet has room for one more operation, and its reply for the result.
    #[inline]
    fn has_room(&self, bundle: &Bundle, key: &[u8], operation: &Operation<'_>) -> bool {
        let (count, bytes) = (bundle.packet.count(), bundle.packet.bytes().len());
        let value = if matches!(operation, Operation::Get) { self.found_bytes.get() } else { 0 };
        count < self.batch
            && bytes + OPERATION_BYTES + key.len() + operation.value().len() <= self.request_room
            && (count + 1) * (RESULT_BYTES + value) <= self.reply_room
    }

    async fn ask_for<'b>(
        &self,
        bundle: &'b mut Bundle,
    ) -> Result<(&'b mut Bundle, requests::Reply), EngineError> {
        let (to, buf) = (self.worker(bundle.partition), std::mem::take(&mut bundle.reply));
        let (packet, is_read) = (bundle.packet.bytes(), bundle.packet.is_read());
        let reply = self.requester.call_packed(&self.fabric, to, packet, is_read, buf).await?;
        Ok((bundle, reply))
    }

    /// Hands on the results of a packet.
    fn unpack(
        &self,
        bundle: &mut Bundle,
        reply: requests::Reply,
        take: &mut impl FnMut(usize, Answered<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let packed = reply.packed()?;
        let mut replies = Outcomes::new(bundle.numbers.len());
        let (mut result, mut longest) = (Ok(()), None);
        for number in &bundle.numbers {
            let Some(Ok(told)) = replies.next(packed) else { return Err(strange_outcomes()) };
            if let Ok(Outcome::Found { value, .. }) = told {
                longest = longest.max(Some(value.len()));
            }
            // The first error counts, and the other operations were done all the same.
            result = take(*number, told).and(result);
        }
        if let Some(longest) = longest {
            self.learn(longest);
        }
        bundle.reply = reply.into_buf();
        result
    }
}
