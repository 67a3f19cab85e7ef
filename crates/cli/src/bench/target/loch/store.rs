//! A client of an engine, as the bench drives it: one shape for all of them.

use std::cell::Cell;
use std::future::Future;
use std::ops::{Deref, Range};

use loch::{VerbCount, lanes};
use loch_engines::EngineError;
use loch_engines::nessie::{self, Found, PutOptions, published};
use loch_fabric::{Buf, Fabric};

use super::client::Lane;
use crate::bench::measure::Op;
use crate::bench::workload::Workload;

/// A client.
pub trait Store {
    /// A value that was found.
    type Found: Deref<Target = [u8]>;

    /// The value of `key`; `buf` is filled with what it comes in.
    fn get(
        &self,
        key: &[u8],
        buf: Buf,
    ) -> impl Future<Output = Result<Option<Self::Found>, EngineError>>;

    /// Gives `key` a value; the value's version.
    fn put(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<u64, EngineError>>;

    /// The buffer of a value, for the next GET.
    fn into_buf(found: Self::Found) -> Buf;

    /// What its operations sent so far, the answers included.
    fn counted(&self) -> VerbCount;

    /// Attempts that were repeated inside operations so far.
    fn retries(&self) -> u64;

    /// Ends it in good order: it does no more operations.
    fn leave(&self) -> impl Future<Output = Result<(), EngineError>>;
}

/// A client of nessie, of either protocol: their operations have the same names. Futures are passed on
/// as they are: one that awaits another costs a GET over shared memory some percent.
macro_rules! store {
    ($($client:ident)::+) => {
        impl<F: Fabric> Store for $($client)::+<F> {
            type Found = Found;

            #[inline]
            fn get(
                &self,
                key: &[u8],
                buf: Buf,
            ) -> impl Future<Output = Result<Option<Found>, EngineError>> {
                self.get(key, buf)
            }

            #[inline]
            fn put(
                &self,
                key: &[u8],
                value: &[u8],
            ) -> impl Future<Output = Result<u64, EngineError>> {
                self.put(key, value, PutOptions::default())
            }

            fn into_buf(found: Found) -> Buf {
                found.into_buf()
            }

            #[inline]
            fn counted(&self) -> VerbCount {
                self.fabric().counters().snapshot()
            }

            fn retries(&self) -> u64 {
                self.counts().retries.get()
            }

            async fn leave(&self) -> Result<(), EngineError> {
                self.detach().await
            }
        }
    };
}

store!(nessie::Client);
store!(published::Client);

/// Stores records in so many lanes.
pub async fn load_batch(
    store: &impl Store,
    workload: &Workload,
    records: Range<u64>,
    lanes: usize,
) -> Result<(), EngineError> {
    let next = Cell::new(records.start);
    let lane = |_| async {
        let mut lane = Lane::new(workload);
        while next.get() < records.end {
            let record = next.replace(next.get() + 1);
            let (key, value) = lane.pair(workload, &Op::load(record));
            store.put(key, value).await?;
        }
        Ok(())
    };
    let mut result = Ok(());
    lanes::run(lanes, (0..lanes).map(lane), |ended: Result<(), EngineError>| {
        if let Err(error) = ended {
            // The other lanes have nothing more to do either.
            next.set(records.end);
            result = Err(error);
        }
    })
    .await;
    result
}
