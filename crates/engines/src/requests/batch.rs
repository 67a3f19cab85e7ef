//! Batches: many operations in as few packets as they fill.
//!
//! Operations that [lanes](super::asker) ask for at the same time meet in a packet, and each has a
//! future, a buffer and a hold on the packet. The operations of a batch need none of that: they are
//! packed one after the other, and their outcomes are handed on as they are unpacked.

use loch_fabric::{Buf, Fabric, lanes};

use super::asker::{Asker, Owners};
use super::client::Reply;
use super::packet::{Failure, Outcomes, strange_outcomes};
use super::packing::{Bundle, Bundles};
use super::path::{ReplyPath, RequestPath};
use crate::error::EngineError;
use crate::operation::{Batch, Outcome};

impl<P, R, O: Owners> Asker<P, R, O> {
    /// Asks for all operations of a batch. `done` is called for each operation that was done, with
    /// its number and its outcome, in any order.
    ///
    /// # Errors
    /// As [`Asker::ask`]. After an error no further packet is filled.
    pub async fn ask_many<F>(
        &self,
        fabric: &F,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let mut bundles = self.packing.bundles.take().unwrap_or_default();
        let (mut next, mut result, mut alone) = (0, Ok(()), Vec::new());
        while next < batch.len() && result.is_ok() {
            let (filled, packed) = self.fill(&mut bundles, self.rooms(fabric), batch, next);
            let asked = bundles.all[..filled].iter_mut().map(|it| self.ask_for(fabric, it));
            lanes::run(filled.max(1), asked, |asked| {
                let unpacked =
                    asked.and_then(|(bundle, reply)| self.unpack(bundle, reply, &mut alone, done));
                result = std::mem::replace(&mut result, Ok(())).and(unpacked);
            })
            .await;
            match packed {
                Ok(packed) => next = packed,
                Err(refused) => result = result.and(Err(refused)),
            }
        }
        self.packing.bundles.replace(Some(bundles));
        result?;
        // The outcomes of their packets were longer than a reply can be.
        for number in alone {
            let (key, operation) = batch.operation(number);
            done(number, self.ask(fabric, key, operation, Buf::new()).await?.outcome());
        }
        Ok(())
    }

    /// Fills packets with the operations from number `from` on. Returns the number of packets, and
    /// the number of the first operation that found no room in them, or the error of one that the
    /// table does not take.
    fn fill(
        &self,
        Bundles { all, open }: &mut Bundles,
        rooms: [usize; 2],
        batch: Batch<'_>,
        from: usize,
    ) -> (usize, Result<usize, EngineError>) {
        let area = self.requester.map().area();
        open.clear();
        open.resize(area.workers() as usize, None);
        // As many as can be under way at once.
        let most = area.workers() as usize * usize::from(area.service().window);
        let mut filled = 0;
        for number in from..batch.len() {
            let (key, operation) = batch.operation(number);
            if let Err(refused) = self.check(key, operation) {
                return (filled, Err(refused));
            }
            let source = self.source(key);
            let place = &mut open[usize::from(source)];
            let has_room =
                |at: &usize| self.packing.takes(&all[*at].packet, rooms, key, &operation);
            let at = match place.filter(has_room) {
                Some(at) => at,
                None if filled == most => return (filled, Ok(number)),
                None => {
                    if filled == all.len() {
                        all.push(Bundle::default());
                    }
                    all[filled].begin(source);
                    filled += 1;
                    filled - 1
                }
            };
            *place = Some(at);
            all[at].packet.push(key, &operation);
            all[at].numbers.push(number);
        }
        (filled, Ok(batch.len()))
    }

    async fn ask_for<'b, F>(
        &self,
        fabric: &F,
        bundle: &'b mut Bundle,
    ) -> Result<(&'b mut Bundle, Reply), EngineError>
    where
        F: Fabric,
        P: RequestPath<F>,
        R: ReplyPath<F>,
    {
        let (to, buf) = (self.worker(bundle.source), std::mem::take(&mut bundle.reply));
        let reply = self.requester.ask(fabric, to, &mut bundle.packet, buf, Ok).await?;
        Ok((bundle, reply))
    }

    /// Hands on the outcomes of a packet.
    fn unpack(
        &self,
        bundle: &mut Bundle,
        reply: Reply,
        alone: &mut Vec<usize>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        let packet = reply.packet();
        let mut outcomes = Outcomes::new(bundle.numbers.len());
        let (mut result, mut longest) = (Ok(()), None);
        for number in &bundle.numbers {
            match outcomes.next(packet) {
                Some(Ok(Ok(outcome))) => {
                    if let Outcome::Found { value, .. } = outcome {
                        longest = longest.max(Some(value.len()));
                    }
                    done(*number, outcome);
                }
                Some(Ok(Err(Failure::NoRoom))) => alone.push(*number),
                // The first error counts, and the other operations were done all the same.
                Some(Ok(Err(failure))) => {
                    result = result.and_then(|()| Err(self.error(bundle.source, failure)));
                }
                _ => return Err(strange_outcomes()),
            }
        }
        if let Some(longest) = longest {
            self.packing.learn(longest);
        }
        bundle.reply = reply.into_buf();
        result
    }
}
