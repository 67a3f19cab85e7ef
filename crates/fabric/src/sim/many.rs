//! Verbs of many places, in one doorbell.

use std::future::Future;

use super::endpoint::SimEndpoint;
use super::posted::Posted;
use super::verb::Work;
use crate::limits::DOORBELL_READS_MAX;
use crate::{Buf, RemoteAddr, Result, Swap};

impl SimEndpoint {
    /// Posts one verb that will be waited for, with a doorbell that others share.
    pub(super) fn post_beside(
        &self,
        work: Work,
        at: RemoteAddr,
        data: Vec<u8>,
    ) -> Result<Posted<'_>> {
        let mut verbs = [None; DOORBELL_READS_MAX];
        verbs[0] = Some(self.post(work, at, data)?);
        Ok(Posted { world: &self.world, verbs })
    }

    /// READs many places in one doorbell.
    pub(super) fn post_read_many<'a>(
        &'a self,
        reads: &[(RemoteAddr, usize)],
        mut buf: Buf,
    ) -> impl Future<Output = (Buf, Result<()>)> + 'a {
        // Lengths that no memory has must not be allocated before they are refused.
        let checked = reads.iter().try_for_each(|(at, len)| self.check(*at, *len));
        let posted: Result<Vec<_>> = checked.and_then(|()| {
            self.doorbell();
            let post = |(at, len): &(_, usize)| self.post_beside(Work::Read, *at, vec![0; *len]);
            reads.iter().map(post).collect()
        });
        async move {
            let (start, mut result) = (buf.len(), posted.as_ref().map(|_| ()).map_err(|e| *e));
            for mut read in posted.into_iter().flatten() {
                result = result.and(read.wait().await);
                if let (Ok(()), Some(verb)) = (&result, read.take(0)) {
                    buf.extend_from_slice(&verb.data);
                }
            }
            if result.is_err() {
                buf.truncate(start);
            }
            (buf, result)
        }
    }

    /// Swaps many words in one doorbell.
    pub(super) fn post_swaps<'a>(
        &'a self,
        swaps: &[Swap],
        mut seen: impl FnMut(usize, Result<u64>) + 'a,
    ) -> impl Future<Output = ()> + 'a {
        self.doorbell();
        let post = |swap: &Swap| {
            let work = Work::CompareSwap { expect: swap.expect, new: swap.new };
            match self.is_by_cpu(swap.at) {
                true => Err(self.atomic_by_cpu(work, swap.at)),
                false => Ok(self.post_beside(work, swap.at, Vec::new())),
            }
        };
        let posted: Vec<_> = swaps.iter().map(post).collect();
        async move {
            for (number, swap) in posted.into_iter().enumerate() {
                let old = match swap {
                    Err(by_cpu) => by_cpu,
                    Ok(Err(refused)) => Err(refused),
                    Ok(Ok(mut swap)) => {
                        let done = swap.wait().await;
                        done.map(|()| swap.take(0).expect("it is over").old)
                    }
                };
                seen(number, old);
            }
        }
    }
}
