//! How a draft of an entry is written, pending, before a word of the index names it.

use loch_fabric::Fabric;
use zerocopy::IntoBytes;

use super::client::Client;
use super::entry::{Extension, Previous, Route, Status};
use crate::error::EngineError;
use crate::nessie::client::alloc::Own;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::{Header, flags};
use crate::nessie::layout::ite::Ite;
use crate::nessie::ops::draft::{Draft, DraftValue, Installed};
use crate::operation::PutOptions;

/// How one attempt to install an entry ended.
pub(super) enum Attempt {
    /// The operation is done. The entry is in the index, or was released.
    Done(Installed),
    /// A slot changed, and the entry's word was never in the index: start over.
    Again,
    /// The entry's word was in the index, and the entry was aborted: the operation needs another
    /// entry.
    Spent,
    /// All candidates are taken; the entry's word was never in the index.
    Full(Box<Words>),
    /// As [`Attempt::Spent`], and the operation cannot go on.
    Failed(EngineError),
}

impl<F: Fabric> Client<F> {
    pub(super) async fn draft<'a>(
        &self,
        key: &'a [u8],
        value: DraftValue<'a>,
        options: PutOptions,
    ) -> Result<Draft<'a>, EngineError> {
        self.base.draft(key, value, flags::STATUS, options).await
    }

    /// Writes an entry into owned memory, pending; its generation is there already.
    pub(super) fn write(
        &self,
        draft: &Draft<'_>,
        own: Own,
        prev: Option<Previous>,
        route: Option<Route>,
    ) -> Result<(), EngineError> {
        let number;
        let value = match &draft.value {
            DraftValue::Bytes(bytes) => *bytes,
            DraftValue::Number(n) => {
                number = n.get().to_le_bytes();
                &number
            }
            DraftValue::InPlace(_) => unreachable!("nothing is reserved in these tables"),
        };
        let mut header = draft.header(own.generation);
        let extension = Extension::pending(own.generation, prev, route);
        let mut expiry = &draft.expires_at_ms.to_le_bytes()[..];
        match header.flags & flags::EXPIRES {
            0 => expiry = &[],
            _ => self.base.will_expire(own)?,
        }
        if self.base.map.shape.options.checksums {
            let unchanging = &extension.as_bytes()[size_of_val(&extension.status)..];
            let summed = [unchanging, expiry, draft.key].concat();
            header.checksum = header.checksum_of(own.place, &summed, value);
        }
        let head = &header.as_bytes()[8..];
        let parts = [head, extension.as_bytes(), expiry, draft.key, value];
        Ok(self.base.fabric.store(own.at.add(8), &parts)?)
    }

    /// Remembers the entry that was just committed.
    pub(super) fn installed(
        &self,
        word: Ite,
        draft: &Draft<'_>,
        generation: u64,
        prev: Option<Previous>,
    ) {
        if self.base.cache.is_none() {
            return;
        }
        let header: Header = draft.header(generation);
        let mut extension = Extension::pending(generation, prev, None);
        extension.status = Status::Committed.word(generation);
        let expiry = draft.expires_at_ms.to_le_bytes();
        let expiry = if header.flags & flags::EXPIRES != 0 { &expiry[..] } else { &[] };
        let value = if let DraftValue::Bytes(value) = draft.value { value } else { &[] };
        let entry = [header.as_bytes(), extension.as_bytes(), expiry, draft.key, value].concat();
        self.keep(word, &entry);
    }
}
