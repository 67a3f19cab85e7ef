//! The effect of each operation on the value at hand.

use super::op_context::{AtHand, OpContext, word};
use super::{Clock, Job, Processor};
use crate::error::EngineError;
use crate::functions::{Function, Lambda};
use crate::kv_direct::storage::Lookup;
use crate::kv_direct::vector::{self, UserFunctions};
use crate::limits::{DAEMON_TURNS_MAX, STORES_MAX};
use crate::lines::{HostMemory, pending_once};
use crate::operation::{Expect, Operation, Outcome, PutOptions, Version};
use crate::planted::{self, Bug};

/// The longest value that is kept at hand after it was stored.
const FORWARD_BYTES_MAX: usize = 512;

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    /// Applies an operation to the value at hand and answers it.
    pub(super) async fn apply(&self, lookup: &mut Lookup, job: &J, context: &mut OpContext) {
        let expires_at_ms = context.expires_at_ms.filter(|_| !planted::is(Bug::ExpiredSeen));
        if context.is_there() && expires_at_ms.is_some_and(|at| at <= self.now_ms.get()) {
            let is_shared = job.operation().is_read() && !self.claims(job);
            if is_shared && !planted::is(Bug::ReadsRemoveExpired) {
                // Other operations may be reading the bucket: the next operation that changes the
                // key removes the value.
                context.at_hand = AtHand::Absent;
            } else if let Err(failure) = self.remove(lookup, context).await {
                return job.answer(Err(failure));
            }
        }
        let applied = match job.operation() {
            Operation::Get => {
                Ok(if context.is_there() { context.found() } else { Outcome::Absent })
            }
            Operation::Contains => Ok(Outcome::Contained(context.is_there())),
            Operation::Put { value, options } => {
                self.put(lookup, job.key(), context, value, options).await
            }
            Operation::PutIf { value, expect, options } => {
                self.put_if(lookup, job.key(), context, value, expect, options).await
            }
            Operation::Append(bytes) => {
                let value = [context.value(), bytes].concat();
                let expires_at_ms = context.expires_at_ms.filter(|_| context.is_there());
                self.put(lookup, job.key(), context, &value, PutOptions { expires_at_ms }).await
            }
            Operation::Touch { of, options } => {
                self.touch(lookup, job.key(), context, of, options).await
            }
            Operation::GetAndTouch(options) => {
                self.get_and_touch(lookup, job.key(), context, options).await
            }
            Operation::Delete { of } => self.delete(lookup, context, of).await,
            Operation::FetchAdd(add) => {
                let added = self.update(lookup, job.key(), context, &Lambda::adds(add)).await;
                added.map_err(|error| match error {
                    EngineError::NotAVector { len, .. } => EngineError::NotACounter { len },
                    error => error,
                })
            }
            Operation::Update(lambda) => self.update(lookup, job.key(), context, &lambda).await,
            _ if !context.is_there() => Ok(Outcome::Absent),
            Operation::UpdateAll { lambda, returns } => {
                let functions = &self.functions;
                self.update_vector(context, &lambda, returns, |value| {
                    vector::update_all(&lambda, value, functions)
                })
            }
            Operation::UpdateEach { lambda, operands, returns } => {
                let functions = &self.functions;
                self.update_vector(context, &lambda, returns, |value| {
                    vector::update_each(&lambda, operands, value, functions)
                })
            }
            Operation::Reduce(lambda) => {
                vector::reduce(&lambda, context.value(), &self.functions).map(Outcome::Scalar)
            }
            Operation::Filter(lambda) => {
                let mut kept = std::mem::take(&mut context.before);
                kept.clear();
                let filtered = vector::filter(&lambda, context.value(), &mut kept, &self.functions);
                context.before = kept;
                filtered.map(|()| Outcome::Vector(&context.before))
            }
        };
        job.answer(applied);
    }

    async fn delete(
        &self,
        lookup: &mut Lookup,
        context: &mut OpContext,
        of: Option<Version>,
    ) -> Result<Outcome<'static>, EngineError> {
        if of.is_some() && !self.settings.versions {
            return Err(EngineError::NoVersions);
        }
        if !context.is_there() || of.is_some_and(|of| of != context.version) {
            return Ok(Outcome::Deleted(false));
        }
        self.remove(lookup, context).await.map(|()| Outcome::Deleted(true))
    }

    async fn remove(
        &self,
        lookup: &mut Lookup,
        context: &mut OpContext,
    ) -> Result<(), EngineError> {
        self.storage.remove(lookup).await?;
        context.at_hand = AtHand::Absent;
        context.is_dirty = false;
        Ok(())
    }

    /// The next version, if values have versions.
    pub(super) fn version(&self) -> Version {
        if !self.settings.versions {
            return Version::default();
        }
        let (next, end) = self.versions.get();
        assert!(next < end, "versions are supplied in time");
        self.versions.set((next + 1, end));
        Version::from_u64(next)
    }

    async fn put<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        context: &'d mut OpContext,
        value: &[u8],
        options: PutOptions,
    ) -> Result<Outcome<'d>, EngineError> {
        let (version, expires_at_ms) = (self.version(), options.expires_at_ms);
        let is_short = value.len() <= FORWARD_BYTES_MAX;
        let expires = expires_at_ms.is_some();
        if context.is_there() && is_short && self.storage.stays(lookup, key, value.len(), expires) {
            let keeps_shape = context.at_hand == AtHand::Item
                && context.item.value().len() == value.len()
                && context.item.expires_at_ms.is_some() == expires;
            if keeps_shape {
                context.item.value_mut().copy_from_slice(value);
            } else {
                context.keep(value);
            }
            (context.version, context.expires_at_ms, context.is_dirty) =
                (version, expires_at_ms, true);
            return Ok(Outcome::Stored(version));
        }
        self.store(lookup, key, value, version, expires_at_ms).await?;
        (context.version, context.expires_at_ms, context.is_dirty) =
            (version, expires_at_ms, false);
        if is_short {
            context.keep(value);
        } else if !planted::is(Bug::StaleAtHand) {
            context.at_hand = AtHand::Elsewhere;
        }
        Ok(Outcome::Stored(version))
    }

    /// Stores a value. If there is no slab for it, tries again after the host's daemon has merged
    /// the free slabs.
    async fn store(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        value: &[u8],
        version: Version,
        expires_at_ms: Option<u64>,
    ) -> Result<(), EngineError> {
        let mut left = STORES_MAX;
        loop {
            let stored = self.storage.store(lookup, key, value, version, expires_at_ms).await;
            left -= 1;
            match stored {
                Err(EngineError::OutOfMemory { .. })
                    if left > 0 && self.storage.slabs().starving() =>
                {
                    if !Box::pin(self.merged()).await {
                        return stored;
                    }
                }
                stored => return stored,
            }
        }
    }

    /// Waits until the daemon has answered. Returns whether it has. If the daemon once failed to
    /// answer, the processor does not wait for it until it answers again.
    #[cold]
    async fn merged(&self) -> bool {
        let starving = || self.storage.slabs().starving();
        let turns = if self.is_daemon_gone.get() { 0 } else { DAEMON_TURNS_MAX };
        for _ in 0..turns {
            if !starving() {
                break;
            }
            self.clock.cycles(1).await;
            pending_once().await;
        }
        self.is_daemon_gone.set(starving());
        !starving()
    }

    async fn put_if<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        context: &'d mut OpContext,
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Outcome<'d>, EngineError> {
        let there = context.is_there().then_some(context.version);
        let as_expected = match expect {
            Expect::Absent => there.is_none(),
            Expect::Version(_) if !self.settings.versions => return Err(EngineError::NoVersions),
            Expect::Version(version) => there == Some(version),
        };
        if !as_expected {
            return Ok(Outcome::Refused(there));
        }
        self.put(lookup, key, context, value, options).await
    }

    async fn touch<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        context: &'d mut OpContext,
        of: Option<Version>,
        options: PutOptions,
    ) -> Result<Outcome<'d>, EngineError> {
        if of.is_some() && !self.settings.versions {
            return Err(EngineError::NoVersions);
        }
        let there = context.is_there().then_some(context.version);
        if there.is_none_or(|there| of.is_some_and(|of| of != there)) {
            return Ok(Outcome::Refused(there));
        }
        let value = context.value().to_vec();
        self.put(lookup, key, context, &value, options).await
    }

    async fn get_and_touch<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        context: &'d mut OpContext,
        options: PutOptions,
    ) -> Result<Outcome<'d>, EngineError> {
        if !context.is_there() {
            return Ok(Outcome::Absent);
        }
        // A long value is not at hand any more once it was stored.
        let mut value = std::mem::take(&mut context.before);
        value.clear();
        value.extend_from_slice(context.value());
        let stored = self.put(lookup, key, context, &value, options).await.map(|_| ());
        context.before = value;
        stored?;
        let (version, expires_at_ms) = (context.version, context.expires_at_ms);
        Ok(Outcome::Found { version, expires_at_ms, value: &context.before })
    }

    /// `update_scalar2scalar`.
    async fn update<'d>(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        context: &'d mut OpContext,
        lambda: &Lambda,
    ) -> Result<Outcome<'d>, EngineError> {
        let bytes = lambda.element.bytes();
        let before = match context.value() {
            _ if !context.is_there() => 0,
            value if value.len() == bytes => word(value),
            value => {
                return Err(EngineError::NotAVector {
                    len: value.len() as u64,
                    wanted: bytes as u64,
                });
            }
        };
        let after = vector::scalar(lambda, before, &self.functions)?.to_le_bytes();
        let options = PutOptions::default();
        self.put(lookup, key, context, &after[..bytes], options).await?;
        Ok(Outcome::Scalar(before))
    }

    /// An update of a vector at hand, which keeps its length and so its place.
    fn update_vector<'d>(
        &self,
        context: &'d mut OpContext,
        lambda: &Lambda,
        returns: bool,
        update: impl FnOnce(&mut [u8]) -> Result<(), EngineError>,
    ) -> Result<Outcome<'d>, EngineError> {
        let elements = (context.value().len() / lambda.element.bytes()) as u64;
        let may_fail_midway = matches!(lambda.function, Function::User(_));
        if returns || may_fail_midway {
            let mut before = std::mem::take(&mut context.before);
            before.clear();
            before.extend_from_slice(context.value());
            context.before = before;
        }
        if let Err(failure) = update(context.value_mut()) {
            if may_fail_midway && !planted::is(Bug::HalfUpdateStays) {
                let before = std::mem::take(&mut context.before);
                context.value_mut().copy_from_slice(&before);
                context.before = before;
            }
            return Err(failure);
        }
        if !planted::is(Bug::UpdateKeepsVersion) {
            context.version = self.version();
        }
        context.is_dirty = true;
        Ok(if returns { Outcome::Vector(&context.before) } else { Outcome::Updated(elements) })
    }
}
