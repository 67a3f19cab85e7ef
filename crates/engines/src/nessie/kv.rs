//! The clients of both protocols as [`Kv`]s, and the operations that both build from others.
//!
//! The futures of [`Kv`] are the futures of the operations themselves: a future that awaits another
//! costs a GET over shared memory some percent.

use loch_fabric::{Buf, Fabric};

use super::client::{Attempts, Client};
use super::published;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::operation::{
    Batch, Conditional, Done, Expect, Operation, Outcome, PutOptions, Value, ValueRef, Version,
};
use crate::planted::{self, Bug};

/// Implements [`Kv`] by the methods that have the same names in both protocols.
macro_rules! kv {
    ($($client:ident)::+ $(, $base:ident)?; $($more:tt)*) => {
        impl<F: Fabric> Kv for $($client)::+<F> {
            type Fabric = F;

            fn fabric(&self) -> &F {
                self$(.$base)?.fabric()
            }

            fn retries(&self) -> u64 {
                self$(.$base)?.counts().retries.get()
            }

            async fn execute(
                &self,
                key: &[u8],
                operation: Operation<'_>,
                buf: Buf,
            ) -> Result<Done, EngineError> {
                let outcome = match operation {
                    Operation::Get => return Ok(self.get(key, buf).await?.into()),
                    Operation::Contains => Outcome::Contained(self.contains(key).await?),
                    Operation::Put { value, options } => {
                        Outcome::Stored(self.put(key, value, options).await?)
                    }
                    Operation::PutIf { value, expect, options } => {
                        self.put_if(key, value, expect, options).await?.into()
                    }
                    Operation::Delete { of: None } => Outcome::Deleted(self.delete(key).await?),
                    Operation::Delete { of: Some(version) } => {
                        Outcome::Deleted(self.delete_if(key, version).await?)
                    }
                    Operation::FetchAdd(add) => Outcome::Scalar(self.fetch_add(key, add).await?),
                    Operation::Append(bytes) => {
                        let appends = append(self, &self$(.$base)?, key, bytes);
                        Outcome::Stored(Box::pin(appends).await?)
                    }
                    Operation::Touch { of, options } => {
                        let touches = touch(self, &self$(.$base)?, key, of, options, Buf::new());
                        match Box::pin(touches).await? {
                            Ok(touched) => Outcome::Stored(touched.version()),
                            Err(version) => Outcome::Refused(version),
                        }
                    }
                    Operation::GetAndTouch(options) => {
                        let touches = touch(self, &self$(.$base)?, key, None, options, buf);
                        return Ok(Box::pin(touches).await?.ok().into());
                    }
                    _ => return Err(EngineError::Unsupported),
                };
                Ok(Done::without_bytes(outcome, buf))
            }

            #[inline]
            fn get(
                &self,
                key: &[u8],
                buf: Buf,
            ) -> impl Future<Output = Result<Option<Value>, EngineError>> {
                self.get(key, buf)
            }

            #[inline]
            fn put(
                &self,
                key: &[u8],
                value: &[u8],
                options: PutOptions,
            ) -> impl Future<Output = Result<Version, EngineError>> {
                self.put(key, value, options)
            }

            fn come_to_rest(&self) -> impl Future<Output = Result<(), EngineError>> {
                self$(.$base)?.come_to_rest()
            }

            fn leave(&self) {
                self$(.$base)?.leave();
            }

            fn detach(&self) -> impl Future<Output = Result<(), EngineError>> {
                self$(.$base)?.detach()
            }

            $($more)*
        }
    };
}

kv!(Client;
    fn shares(&self, _: bool) -> bool {
        self.takes_batches()
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        match batch {
            Batch::Get(keys) => {
                let found = |number, found: Option<ValueRef<'_>>| {
                    done(number, found.map_or(Outcome::Absent, Outcome::from));
                };
                self.get_many(keys, found).await
            }
            Batch::Contains(keys) => {
                self.contains_many(keys, |number, is| done(number, Outcome::Contained(is))).await
            }
            Batch::Put(pairs) => {
                self.put_many(pairs, |number, version| done(number, Outcome::Stored(version))).await
            }
            Batch::Delete(keys) => {
                self.delete_many(keys, |number, was| done(number, Outcome::Deleted(was))).await
            }
        }
    }
);
kv!(published::Client, base;);

/// APPEND: a PUT on the condition that the value is still the one that was read, repeated until it
/// succeeds. The linearization point is the PUT's.
async fn append<F: Fabric>(
    client: &impl Kv<Fabric = F>,
    base: &Client<F>,
    key: &[u8],
    bytes: &[u8],
) -> Result<Version, EngineError> {
    let mut attempts = Attempts::default();
    loop {
        let found = client.get(key, Buf::new()).await?;
        let put = match &found {
            None => client.put_if(key, bytes, Expect::Absent, PutOptions::default()).await?,
            Some(old) => {
                let options = PutOptions { expires_at_ms: old.expires_at_ms() };
                let (value, expect) = ([old, bytes].concat(), Expect::Version(old.version()));
                client.put_if(key, &value, expect, options).await?
            }
        };
        match put {
            Conditional::Done(version) => return Ok(version),
            Conditional::Refused(_) => attempts.again(base).await?,
        }
    }
}

/// TOUCH: a PUT of the same bytes on the condition that the value is still the one that was read,
/// repeated until it succeeds. The linearization point is the PUT's. An entry is never changed
/// while a slot names it, so a touch in place is not possible. Returns the value as it is then, or
/// the version of the present value if there is none to touch, or not one of the version `of`.
async fn touch<F: Fabric>(
    client: &impl Kv<Fabric = F>,
    base: &Client<F>,
    key: &[u8],
    of: Option<Version>,
    options: PutOptions,
    mut buf: Buf,
) -> Result<Result<Value, Option<Version>>, EngineError> {
    let mut attempts = Attempts::default();
    loop {
        let Some(found) = client.get(key, buf).await? else { return Ok(Err(None)) };
        let version = found.version();
        if of.is_some_and(|of| of != version) {
            return Ok(Err(Some(version)));
        }
        if planted::is(Bug::TouchPutsAnyway) {
            let version = client.put(key, &found, options).await?;
            return Ok(Ok(found.touched(version, options.expires_at_ms)));
        }
        match client.put_if(key, &found, Expect::Version(version), options).await? {
            Conditional::Done(version) => {
                return Ok(Ok(found.touched(version, options.expires_at_ms)));
            }
            Conditional::Refused(_) => attempts.again(base).await?,
        }
        buf = found.into_buf();
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::client_with;
    use crate::nessie::layout::geometry::Options;

    /// To make room for the new value would mean to evict the one that it is made of.
    #[test]
    fn a_value_of_which_no_second_fits_stays_where_it_is_appended_to_or_touched() {
        let client = client_with(4 << 20, Options { evicts: true, ..Options::default() });
        let long = vec![7; (client.map.data_bytes() * 3 / 5) as usize];
        block_on(client.put(b"long", &long, PutOptions::default())).unwrap();
        let is_full = |error| matches!(error, EngineError::OutOfMemory { .. });
        let appended = block_on(Kv::append(&client, b"long", b"more"));
        assert!(appended.is_err_and(is_full));
        let options = PutOptions { expires_at_ms: Some(u64::MAX) };
        assert!(block_on(Kv::touch(&client, b"long", options)).is_err_and(is_full));
        let touched = block_on(Kv::get_and_touch(&client, b"long", options, Buf::new()));
        assert!(touched.is_err_and(is_full));
        let found = block_on(client.get(b"long", Buf::new())).unwrap().expect("it is there");
        assert!(*found == *long && found.expires_at_ms().is_none());
        block_on(client.put(b"other", &long, PutOptions::default())).unwrap();
        assert!(block_on(client.get(b"long", Buf::new())).unwrap().is_none(), "it was evicted");
    }
}
