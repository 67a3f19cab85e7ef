//! The interface of an engine's client, as the library, the benchmark and the simulation use it.

use loch_fabric::{Buf, Fabric, VerbCount};

use crate::error::EngineError;
use crate::limits::{KEY_BYTES_MAX, TOUCHES_MAX};
use crate::operation::{
    Batch, Conditional, Expect, Operation, Outcome, PutOptions, Value, Version,
};

/// A client of a table: one thread's session and endpoint, and the operations it has under way.
///
/// Operations take `&self`, so the lanes of a thread can have any number of them under way. An
/// engine implements `get`, `contains` and `execute`, and says which fabric and how many retries
/// there were; the other operations are built from these, unless the engine has a shorter way.
#[allow(async_fn_in_trait, reason = "a client is one thread's: its futures need not be sent")]
pub trait Kv {
    /// The fabric that carries the client's verbs.
    type Fabric: Fabric;

    /// The fabric, for its counters and clocks.
    fn fabric(&self) -> &Self::Fabric;

    /// The cost of the client's operations so far: the verbs of its endpoint, and those that
    /// workers posted to answer.
    fn counted(&self) -> VerbCount {
        self.fabric().counters().snapshot()
    }

    /// The number of attempts that operations repeated so far, and of requests that were sent
    /// again.
    fn retries(&self) -> u64;

    /// The value of `key`, if it has one. The bytes read for it are put into `buf`.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if other clients kept changing the index slots or
    /// the entry of the key, or if the key's worker did not answer in time.
    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError>;

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Kv::get`].
    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError>;

    /// Executes an operation that may change the value of `key`.
    ///
    /// # Errors
    /// [`EngineError`]; after every error but [`EngineError::Ambiguous`] the key's value is
    /// unchanged.
    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError>;

    /// Whether batches of operations that only read, or that change something, cost less than as
    /// many single operations in lanes.
    fn shares(&self, _is_read: bool) -> bool {
        false
    }

    /// Executes the operations of a batch. `done` is called for each operation that was done, with
    /// its number and its outcome, in any order.
    ///
    /// # Errors
    /// As [`Kv::execute`]; [`EngineError::Unsupported`] if the client [shares](Kv::shares) nothing.
    /// After an error no further operations are begun.
    async fn execute_many(
        &self,
        _batch: Batch<'_>,
        _done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        Err(EngineError::Unsupported)
    }

    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<Version, EngineError> {
        self.execute(key, Operation::Put { value, options }).await?.stored()
    }

    /// Gives `key` the value `value` if the present value is as expected.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        self.execute(key, Operation::PutIf { value, expect, options }).await?.conditional()
    }

    /// Deletes the value of `key`. Returns whether the key had a value.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.execute(key, Operation::Delete { of: None }).await?.deleted()
    }

    /// Deletes the value of `key` if it has this version. Returns whether it did.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NoVersions`].
    async fn delete_if(&self, key: &[u8], version: Version) -> Result<bool, EngineError> {
        self.execute(key, Operation::Delete { of: Some(version) }).await?.deleted()
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns the number
    /// before; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NotACounter`].
    async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        self.execute(key, Operation::FetchAdd(add)).await?.scalar()
    }

    /// Appends `bytes` to the value of `key` in one atomic step; a key without a value gets `bytes`
    /// as its value. Returns the version of the new value. It expires when the old one did; a value
    /// that an APPEND creates does not expire.
    ///
    /// # Errors
    /// As [`Kv::execute`]; [`EngineError::ValueTooLong`] if the old value and `bytes` together are
    /// too long.
    async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<Version, EngineError> {
        self.execute(key, Operation::Append(bytes)).await?.stored()
    }

    /// Gives the present value of `key` another expiry, in one atomic step: its bytes stay, its
    /// version is new. Returns that version; `None` if the key has no value, and then still has
    /// none.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn touch(&self, key: &[u8], options: PutOptions) -> Result<Option<Version>, EngineError> {
        let touch = Operation::Touch { of: None, options };
        Ok(match self.execute(key, touch).await?.conditional()? {
            Conditional::Done(version) => Some(version),
            Conditional::Refused(_) => None,
        })
    }

    /// As [`Kv::touch`], and returns the value, with its new version and expiry. The bytes read for
    /// it are put into `buf`.
    ///
    /// This is a GET, and a TOUCH on the condition that the value is still the one that was found,
    /// as often as it takes. The whole takes effect when that TOUCH does.
    ///
    /// # Errors
    /// As [`Kv::execute`]; [`EngineError::Timeout`] if other clients kept changing the value, and
    /// [`EngineError::NoVersions`] if the table has no versions and the engine no shorter way.
    async fn get_and_touch(
        &self,
        key: &[u8],
        options: PutOptions,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        get_and_touch(self, key, options, buf).await
    }

    /// Called after an operation by a client over a network: nobody knows whether it is used again.
    /// A client that announces epochs waits until nothing holds its announcement up, as
    /// [`nessie::Client::come_to_rest`](crate::nessie::Client::come_to_rest) says.
    ///
    /// # Errors
    /// The fabric's.
    async fn come_to_rest(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Called when nobody may use the client for long: also after an operation whose future was
    /// dropped. Grace periods then do not wait for the client longer than for its verbs.
    fn leave(&self) {}

    /// Ends the client in good order: it starts no more operations and leaves nothing behind.
    ///
    /// # Errors
    /// The fabric's errors; the node then cleans up what is left.
    async fn detach(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// [`Kv::get_and_touch`] by a GET and a conditional TOUCH.
pub(crate) async fn get_and_touch(
    client: &(impl Kv + ?Sized),
    key: &[u8],
    options: PutOptions,
    mut buf: Buf,
) -> Result<Option<Value>, EngineError> {
    let began_us = client.fabric().now_us();
    for _ in 0..TOUCHES_MAX {
        let Some(found) = client.get(key, buf).await? else { return Ok(None) };
        let touch = Operation::Touch { of: Some(found.version()), options };
        match client.execute(key, touch).await?.conditional()? {
            Conditional::Done(version) => {
                return Ok(Some(found.touched(version, options.expires_at_ms)));
            }
            // The value was deleted, or has expired.
            Conditional::Refused(None) => return Ok(None),
            Conditional::Refused(Some(_)) => buf = found.into_buf(),
        }
    }
    Err(EngineError::Timeout { timeout_us: client.fabric().now_us() - began_us })
}

/// A client of one of two kinds: for engines whose client without a session differs from the client
/// with one, or that have two ways of sending requests.
pub enum OneOf<A, B> {
    /// A client of the first kind.
    First(A),
    /// A client of the second kind.
    Second(B),
}

impl<A: Kv, B: Kv<Fabric = A::Fabric>> Kv for OneOf<A, B> {
    type Fabric = A::Fabric;

    fn fabric(&self) -> &A::Fabric {
        match self {
            Self::First(client) => client.fabric(),
            Self::Second(client) => client.fabric(),
        }
    }

    fn counted(&self) -> VerbCount {
        match self {
            Self::First(client) => client.counted(),
            Self::Second(client) => client.counted(),
        }
    }

    fn retries(&self) -> u64 {
        match self {
            Self::First(client) => client.retries(),
            Self::Second(client) => client.retries(),
        }
    }

    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        match self {
            Self::First(client) => client.get(key, buf).await,
            Self::Second(client) => client.get(key, buf).await,
        }
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        match self {
            Self::First(client) => client.contains(key).await,
            Self::Second(client) => client.contains(key).await,
        }
    }

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError> {
        match self {
            Self::First(client) => client.execute(key, operation).await,
            Self::Second(client) => client.execute(key, operation).await,
        }
    }

    async fn get_and_touch(
        &self,
        key: &[u8],
        options: PutOptions,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        match self {
            Self::First(client) => client.get_and_touch(key, options, buf).await,
            Self::Second(client) => client.get_and_touch(key, options, buf).await,
        }
    }

    fn shares(&self, is_read: bool) -> bool {
        match self {
            Self::First(client) => client.shares(is_read),
            Self::Second(client) => client.shares(is_read),
        }
    }

    async fn execute_many(
        &self,
        batch: Batch<'_>,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<(), EngineError> {
        match self {
            Self::First(client) => client.execute_many(batch, done).await,
            Self::Second(client) => client.execute_many(batch, done).await,
        }
    }

    async fn come_to_rest(&self) -> Result<(), EngineError> {
        match self {
            Self::First(client) => client.come_to_rest().await,
            Self::Second(client) => client.come_to_rest().await,
        }
    }

    fn leave(&self) {
        match self {
            Self::First(client) => client.leave(),
            Self::Second(client) => client.leave(),
        }
    }

    async fn detach(&self) -> Result<(), EngineError> {
        match self {
            Self::First(client) => client.detach().await,
            Self::Second(client) => client.detach().await,
        }
    }
}

/// The reader of a table in which even a GET is a request. All its operations are refused.
pub struct NeedsSession<F> {
    fabric: F,
}

impl<F> NeedsSession<F> {
    /// A reader over `fabric`, which it only holds.
    pub fn new(fabric: F) -> Self {
        Self { fabric }
    }
}

impl<F: Fabric> Kv for NeedsSession<F> {
    type Fabric = F;

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn retries(&self) -> u64 {
        0
    }

    async fn get(&self, key: &[u8], _: Buf) -> Result<Option<Value>, EngineError> {
        check_key(key)?;
        Err(EngineError::NeedsSession)
    }

    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        check_key(key)?;
        Err(EngineError::NeedsSession)
    }

    async fn execute(&self, _: &[u8], _: Operation<'_>) -> Result<Outcome<'static>, EngineError> {
        Err(EngineError::ReadOnly)
    }
}

/// The lengths of keys and values that a table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Bytes of the longest key together with its value, if there is a bound.
    pub key_and_value_bytes_max: Option<usize>,
    /// Bytes of every key, if all keys have the same length.
    pub key_bytes: Option<usize>,
}

impl Lengths {
    /// Checks that the table takes the key with a value of `len` bytes.
    ///
    /// # Errors
    /// [`EngineError::KeyEmpty`], [`EngineError::KeyTooLong`], [`EngineError::KeyOfOtherLength`],
    /// [`EngineError::ValueTooLong`].
    #[inline]
    pub fn check(&self, key: &[u8], len: usize) -> Result<(), EngineError> {
        check_key(key)?;
        if let Some(want) = self.key_bytes.filter(|want| *want != key.len()) {
            return Err(EngineError::KeyOfOtherLength { len: key.len(), want });
        }
        let max = self.key_and_value_bytes_max.unwrap_or(usize::MAX);
        let Some(room) = max.checked_sub(key.len()) else {
            return Err(EngineError::KeyTooLong { len: key.len(), max });
        };
        let (len, max) = (len as u64, self.value_bytes_max.min(room as u64));
        if len > max { Err(EngineError::ValueTooLong { len, max }) } else { Ok(()) }
    }
}

/// Checks that the key has a valid length.
///
/// # Errors
/// [`EngineError::KeyEmpty`], [`EngineError::KeyTooLong`].
#[inline]
pub fn check_key(key: &[u8]) -> Result<(), EngineError> {
    match key.len() {
        0 => Err(EngineError::KeyEmpty),
        len if len > KEY_BYTES_MAX => Err(EngineError::KeyTooLong { len, max: KEY_BYTES_MAX }),
        _ => Ok(()),
    }
}
