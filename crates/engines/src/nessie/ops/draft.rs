//! A draft of an entry, and how it is written before it is installed.
//!
//! The draft is written whole into an entry that the client owns, except for the generation, which
//! is there already. No client reads the entry before a word of the index names it.

use std::cell::Cell;

use loch_fabric::{Buf, Fabric};
use zerocopy::IntoBytes;

use crate::error::EngineError;
use crate::limits::STORE_AT_ONCE_BYTES_MAX;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::nessie::layout::dte::{EXPIRY_BYTES, HEADER_BYTES, Header, flags};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::layout::ite::{Ite, State};
use crate::operation::{Conditional, Expect, PutOptions, Version};

/// The condition on which an entry is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nessie) enum Rule {
    /// No condition.
    Always,
    /// The key has no value.
    IfAbsent,
    /// The key's value has this version.
    IfVersion(Version),
    /// No condition; the new value is the present number plus this.
    Add(u64),
}

/// The outcome of an attempt to install an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nessie) enum Installed {
    /// The entry is the key's value, or was for a moment. With [`Rule::Add`]: the number before.
    Yes(u64),
    /// The condition did not hold: the version of the key's value, if it has one.
    No(Option<Version>),
}

/// A draft of an entry: everything but its place.
pub(in crate::nessie) struct Draft<'a> {
    pub hash: KeyHash,
    pub key: &'a [u8],
    pub value: DraftValue<'a>,
    pub flags: u16,
    pub expires_at_ms: u64,
    pub version: Version,
}

/// The source of a draft's value.
pub(in crate::nessie) enum DraftValue<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// A number that depends on the present value.
    Number(Cell<u64>),
    /// Bytes that are in the entry already; this is their number.
    InPlace(usize),
}

/// How one attempt to install ended.
pub(in crate::nessie) enum Attempt {
    /// The operation is done.
    Done(Installed),
    /// A slot changed, and the entry's word was never in the index: start over.
    Again,
    /// A slot changed after the entry's tentative word was in the index: the entry needs a new
    /// generation.
    Renew,
    /// A verb failed, and the entry's tentative word may be in the index: the operation cannot go
    /// on, and had no effect. The entry is left to the scrubber.
    Failed(EngineError),
}

impl From<Expect> for Rule {
    fn from(expect: Expect) -> Self {
        match expect {
            Expect::Absent => Self::IfAbsent,
            Expect::Version(version) => Self::IfVersion(version),
        }
    }
}

impl Installed {
    /// The result of a conditional PUT that wrote `version`.
    pub fn conditional(self, version: Version) -> Conditional {
        match self {
            Self::Yes(_) => Conditional::Done(version),
            Self::No(found) => Conditional::Refused(found),
        }
    }

    /// The number before an addition.
    pub fn before(self) -> u64 {
        match self {
            Self::Yes(before) => before,
            Self::No(_) => unreachable!("adding has no condition that could fail"),
        }
    }
}

impl Draft<'_> {
    #[inline]
    pub fn value_len(&self) -> usize {
        match &self.value {
            DraftValue::Bytes(bytes) => bytes.len(),
            DraftValue::Number(_) => 8,
            DraftValue::InPlace(len) => *len,
        }
    }

    #[inline]
    pub fn header(&self, generation: u64) -> Header {
        Header::new(generation, self.version, self.key.len(), self.value_len(), self.flags)
    }

    #[inline]
    pub fn entry_len(&self) -> usize {
        self.header(0).entry_len()
    }

    fn expiry_and_key(&self) -> Vec<u8> {
        let expiry = self.expires_at_ms.to_le_bytes();
        let expiry = if self.flags & flags::EXPIRES != 0 { &expiry[..] } else { &[] };
        [expiry, self.key].concat()
    }
}

impl<F: Fabric> Client<F> {
    /// A draft with a version of its own.
    pub(in crate::nessie) async fn draft<'a>(
        &self,
        key: &'a [u8],
        value: DraftValue<'a>,
        flags: u16,
        options: PutOptions,
    ) -> Result<Draft<'a>, EngineError> {
        let draft = self.unstamped(key, value, flags, options)?;
        Ok(Draft { version: Version::from_u64(self.stamp().await?), ..draft })
    }

    /// A draft whose version the caller sets. It is no future, so PUT has it without a copy.
    #[inline(always)]
    pub(super) fn unstamped<'a>(
        &self,
        key: &'a [u8],
        value: DraftValue<'a>,
        flags: u16,
        options: PutOptions,
    ) -> Result<Draft<'a>, EngineError> {
        let hash = self.hash(key)?;
        let expires = if options.expires_at_ms.is_some() { flags::EXPIRES } else { 0 };
        let expires_at_ms = options.expires_at_ms.unwrap_or(0);
        let draft = Draft {
            hash,
            key,
            value,
            flags: flags | expires,
            expires_at_ms,
            version: Version::default(),
        };
        self.check_value(draft.value_len())?;
        Ok(draft)
    }

    /// Refuses a value that is longer than the table allows.
    pub(in crate::nessie) fn check_value(&self, len: usize) -> Result<(), EngineError> {
        let (len, max) = (len as u64, self.map.shape.geometry.value_bytes_max);
        if len > max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        Ok(())
    }

    /// Writes a draft into an owned entry; its generation is there already.
    #[inline(always)]
    pub(in crate::nessie) async fn write(
        &self,
        draft: &Draft<'_>,
        own: Own,
    ) -> Result<(), EngineError> {
        match &draft.value {
            DraftValue::Bytes(value) => self.write_bytes(draft, own, value),
            DraftValue::Number(number) => self.write_bytes(draft, own, &number.get().to_le_bytes()),
            DraftValue::InPlace(len) => self.write_around(draft, own, *len).await,
        }
    }

    #[inline(always)]
    fn write_bytes(&self, draft: &Draft<'_>, own: Own, value: &[u8]) -> Result<(), EngineError> {
        let mut header = draft.header(own.generation);
        if self.map.shape.options.checksums {
            header.checksum = header.checksum_of(own.place, &draft.expiry_and_key(), value);
        }
        self.write_parts(draft, own, header, value)
    }

    #[inline(always)]
    fn write_parts(
        &self,
        draft: &Draft<'_>,
        own: Own,
        header: Header,
        value: &[u8],
    ) -> Result<(), EngineError> {
        let mut expiry = &draft.expires_at_ms.to_le_bytes()[..];
        match header.flags & flags::EXPIRES {
            0 => expiry = &[],
            _ => self.will_expire(own)?,
        }
        self.fabric.store(own.at.add(8), &[&header.as_bytes()[8..], expiry, draft.key, value])?;
        Ok(())
    }

    /// Tells the node of an owned entry that the entry will have an expiry, so that the node looks
    /// for what has expired (`check/expire.rs`). This comes before the entry is in the index. The
    /// word is set once, and stays as it is.
    #[cold]
    pub(in crate::nessie) fn will_expire(&self, own: Own) -> Result<(), EngineError> {
        let at = self.map.ledger(own.entry.slab.dti).expiring();
        if self.fabric.load(at)? == 0 {
            self.fabric.store(at, &[&1u64.to_le_bytes()])?;
        }
        Ok(())
    }

    /// As [`Self::write`] for a draft with bytes, but puts the entry together in `buf` and stores
    /// it by one copy, which is faster if the entry is short.
    #[inline(always)]
    pub(super) fn write_at_once(
        &self,
        draft: &Draft<'_>,
        own: &Own,
        buf: &mut Buf,
    ) -> Result<(), EngineError> {
        let DraftValue::Bytes(value) = draft.value else { unreachable!("the draft has bytes") };
        let is_short = value.len() <= STORE_AT_ONCE_BYTES_MAX;
        if !is_short || self.map.shape.options.checksums || draft.flags & flags::EXPIRES != 0 {
            return self.write_apart(draft, own, value);
        }
        buf.clear();
        buf.extend_from_slice(&draft.header(own.generation).as_bytes()[8..]);
        buf.extend_from_slice(draft.key);
        buf.extend_from_slice(value);
        self.fabric.store(own.at.add(8), &[buf])?;
        Ok(())
    }

    /// As [`Self::write_bytes`], outside the loop that writes short entries.
    #[inline(never)]
    fn write_apart(&self, draft: &Draft<'_>, own: &Own, value: &[u8]) -> Result<(), EngineError> {
        self.write_bytes(draft, *own, value)
    }

    /// Writes everything but the value, which is in its place already.
    async fn write_around(
        &self,
        draft: &Draft<'_>,
        own: Own,
        len: usize,
    ) -> Result<(), EngineError> {
        let mut header = draft.header(own.generation);
        if self.map.shape.options.checksums {
            let at = own.at.add(header.value_at() as u64);
            let (value, done) = self.fabric.read(at, len, Buf::with_capacity(len)).await;
            done?;
            header.checksum = header.checksum_of(own.place, &draft.expiry_and_key(), &value);
        }
        self.write_parts(draft, own, header, &[])
    }

    /// The word that shows an owned entry.
    #[inline(always)]
    pub(super) fn visible(&self, filter: u64, own: &Own) -> Ite {
        let state = State::Visible { hop: 0 };
        self.map.codec.entry(state, filter, own.place, own.generation)
    }

    /// Remembers the entry that was just installed.
    pub(super) fn installed(
        &self,
        candidates: &Candidates,
        slot: usize,
        word: Ite,
        draft: &Draft<'_>,
        own: &Own,
    ) {
        if self.cache.is_none() {
            return;
        }
        let header = draft.header(own.generation);
        let mut entry = Vec::with_capacity(HEADER_BYTES + EXPIRY_BYTES + draft.key.len());
        entry.extend_from_slice(header.as_bytes());
        if header.flags & flags::EXPIRES != 0 {
            entry.extend_from_slice(&draft.expires_at_ms.to_le_bytes());
        }
        entry.extend_from_slice(draft.key);
        if let DraftValue::Bytes(value) = draft.value {
            entry.extend_from_slice(value);
        }
        self.remember(candidates, slot, word, &entry);
    }

    pub(super) async fn write_number(
        &self,
        draft: &Draft<'_>,
        own: Own,
        number: u64,
    ) -> Result<(), EngineError> {
        if let DraftValue::Number(cell) = &draft.value {
            cell.set(number);
        }
        self.write(draft, own).await
    }
}
