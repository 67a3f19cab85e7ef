//! The interface of an engine's client, as the library, the benchmark and the simulation use it.

use std::future::ready;

use loch_fabric::{Buf, Fabric, VerbCount};

use crate::error::EngineError;
use crate::functions::Lambda;
use crate::limits::{KEY_BYTES_MAX, TOUCHES_MAX};
use crate::operation::{
    Batch, Conditional, Done, Expect, Operation, Outcome, PutOptions, Value, Version,
};

/// A client of a table: one thread's session and endpoint, and the operations it has under way.
///
/// Operations take `&self`, so the lanes of a thread can have any number of them under way. An
/// engine implements `execute`, and says which fabric and how many retries there were; the single
/// operations are built from `execute`, unless the engine has a shorter way.
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

    /// Executes an operation. The bytes that its outcome has, if any, are put into `buf`.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if other clients kept changing the index slots or
    /// the entry of the key, or if the key's worker did not answer in time;
    /// [`EngineError::Unsupported`] if the engine does not have the operation. After every error
    /// but [`EngineError::Ambiguous`] the key's value is unchanged.
    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> impl Future<Output = Result<Done, EngineError>>;

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
    fn execute_many<'a>(
        &'a self,
        _batch: Batch<'a>,
        _done: &'a mut dyn FnMut(usize, Outcome<'_>),
    ) -> impl Future<Output = Result<(), EngineError>> {
        ready(Err(EngineError::Unsupported))
    }

    /// The value of `key`, if it has one. The bytes read for it are put into `buf`.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError> {
        self.execute(key, Operation::Get, buf).await?.into_found()
    }

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.execute(key, Operation::Contains, Buf::new()).await?.outcome().contained()
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
        let put = Operation::Put { value, options };
        self.execute(key, put, Buf::new()).await?.outcome().stored()
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
        let put = Operation::PutIf { value, expect, options };
        self.execute(key, put, Buf::new()).await?.outcome().conditional()
    }

    /// Deletes the value of `key`. Returns whether the key had a value.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.execute(key, Operation::Delete { of: None }, Buf::new()).await?.outcome().deleted()
    }

    /// Deletes the value of `key` if it has this version. Returns whether it did.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NoVersions`].
    async fn delete_if(&self, key: &[u8], version: Version) -> Result<bool, EngineError> {
        let delete = Operation::Delete { of: Some(version) };
        self.execute(key, delete, Buf::new()).await?.outcome().deleted()
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns the number
    /// before; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NotACounter`].
    async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        self.execute(key, Operation::FetchAdd(add), Buf::new()).await?.outcome().scalar()
    }

    /// Appends `bytes` to the value of `key` in one atomic step; a key without a value gets `bytes`
    /// as its value. Returns the version of the new value. It expires when the old one did; a value
    /// that an APPEND creates does not expire.
    ///
    /// # Errors
    /// As [`Kv::execute`]; [`EngineError::ValueTooLong`] if the old value and `bytes` together are
    /// too long.
    async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<Version, EngineError> {
        self.execute(key, Operation::Append(bytes), Buf::new()).await?.outcome().stored()
    }

    /// Gives the present value of `key` another expiry, in one atomic step: its bytes stay, its
    /// version is new. Returns that version; `None` if the key has no value, and then still has
    /// none.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn touch(&self, key: &[u8], options: PutOptions) -> Result<Option<Version>, EngineError> {
        let touch = Operation::Touch { of: None, options };
        Ok(match self.execute(key, touch, Buf::new()).await?.outcome().conditional()? {
            Conditional::Done(version) => Some(version),
            Conditional::Refused(_) => None,
        })
    }

    /// As [`Kv::touch`], and returns the value, with its new version and expiry. The bytes read for
    /// it are put into `buf`.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NoVersions`] if the table has no versions and the
    /// engine no way to do it in one step.
    async fn get_and_touch(
        &self,
        key: &[u8],
        options: PutOptions,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        self.execute(key, Operation::GetAndTouch(options), buf).await?.into_found()
    }

    /// `update_scalar2scalar` (kv-direct §3.2, Table 1): replaces the one element under `key` by
    /// the function's result for it and the operand. Returns the element before, in the low bits of
    /// a word. A key without a value counts as 0. The new value does not expire.
    ///
    /// # Errors
    /// As [`Kv::execute`], [`EngineError::NotAVector`], [`EngineError::NoFunction`],
    /// [`EngineError::FunctionFailed`], [`EngineError::UnfitFunction`]; the methods below do the
    /// same.
    async fn update(&self, key: &[u8], lambda: Lambda) -> Result<u64, EngineError> {
        self.execute(key, Operation::Update(lambda), Buf::new()).await?.outcome().scalar()
    }

    /// `update_scalar2vector`: replaces each element by the function's result for it and the
    /// operand. Returns the number of elements; `None` without a value.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn update_all(&self, key: &[u8], lambda: Lambda) -> Result<Option<u64>, EngineError> {
        let update = Operation::UpdateAll { lambda, returns: false };
        self.execute(key, update, Buf::new()).await?.outcome().updated()
    }

    /// As [`Kv::update_all`], but returns the elements before the update.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn update_all_returning(
        &self,
        key: &[u8],
        lambda: Lambda,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let update = Operation::UpdateAll { lambda, returns: true };
        self.execute(key, update, buf).await?.into_vector()
    }

    /// `update_vector2vector`: replaces each element by the function's result for it and the
    /// operand of the same index. Returns the number of elements; `None` without a value.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn update_each(
        &self,
        key: &[u8],
        lambda: Lambda,
        operands: &[u8],
    ) -> Result<Option<u64>, EngineError> {
        let update = Operation::UpdateEach { lambda, operands, returns: false };
        self.execute(key, update, Buf::new()).await?.outcome().updated()
    }

    /// As [`Kv::update_each`], but returns the elements before the update.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn update_each_returning(
        &self,
        key: &[u8],
        lambda: Lambda,
        operands: &[u8],
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let update = Operation::UpdateEach { lambda, operands, returns: true };
        self.execute(key, update, buf).await?.into_vector()
    }

    /// The function's result over the operand and all elements, one after the other; `None` without
    /// a value.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn reduce(&self, key: &[u8], lambda: Lambda) -> Result<Option<u64>, EngineError> {
        self.execute(key, Operation::Reduce(lambda), Buf::new()).await?.outcome().reduced()
    }

    /// The elements for which the function says yes, in their order; `None` without a value.
    ///
    /// # Errors
    /// As [`Kv::update`].
    async fn filter(
        &self,
        key: &[u8],
        lambda: Lambda,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        self.execute(key, Operation::Filter(lambda), buf).await?.into_vector()
    }

    /// Called after an operation by a client over a network: nobody knows whether it is used again.
    /// A client that announces epochs waits until nothing holds its announcement up, as
    /// [`nessie::Client::come_to_rest`](crate::nessie::Client::come_to_rest) says.
    ///
    /// # Errors
    /// The fabric's.
    fn come_to_rest(&self) -> impl Future<Output = Result<(), EngineError>> {
        ready(Ok(()))
    }

    /// Called when nobody may use the client for long: also after an operation whose future was
    /// dropped. Grace periods then do not wait for the client longer than for its verbs.
    fn leave(&self) {}

    /// Ends the client in good order: it starts no more operations and leaves nothing behind.
    ///
    /// # Errors
    /// The fabric's errors; the node then cleans up what is left.
    fn detach(&self) -> impl Future<Output = Result<(), EngineError>> {
        ready(Ok(()))
    }
}

/// GET-and-touch by a GET, and a TOUCH on the condition that the value is still the one that was
/// found, as often as it takes. The whole takes effect when that TOUCH does. `execute` executes an
/// operation on the key.
///
/// # Errors
/// As [`Kv::get_and_touch`].
pub(crate) async fn get_and_touch(
    fabric: &impl Fabric,
    options: PutOptions,
    mut buf: Buf,
    execute: impl AsyncFn(Operation<'static>, Buf) -> Result<Done, EngineError>,
) -> Result<Done, EngineError> {
    let began_us = fabric.now_us();
    for _ in 0..TOUCHES_MAX {
        let Some(found) = execute(Operation::Get, buf).await?.into_found()? else {
            return Ok(None.into());
        };
        let touch = Operation::Touch { of: Some(found.version()), options };
        match execute(touch, Buf::new()).await?.outcome().conditional()? {
            Conditional::Done(version) => {
                return Ok(Some(found.touched(version, options.expires_at_ms)).into());
            }
            // The value was deleted, or has expired.
            Conditional::Refused(None) => return Ok(None.into()),
            Conditional::Refused(Some(_)) => buf = found.into_buf(),
        }
    }
    Err(EngineError::Timeout { timeout_us: fabric.now_us() - began_us })
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

    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        _: Buf,
    ) -> Result<Done, EngineError> {
        check_key(key)?;
        Err(if operation.is_read() { EngineError::NeedsSession } else { EngineError::ReadOnly })
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
