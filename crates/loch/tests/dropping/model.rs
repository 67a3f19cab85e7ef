//! The values that the keys of one worker may have, and their bytes.
//!
//! An operation whose future is dropped has happened or has not, so a key may have several values
//! until it is read.

use loch::Version;

/// The bytes before the filler of a piece.
const HEAD_BYTES: usize = 24;

/// A part of a value: the first part was put and the others appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub serial: u64,
    /// Bytes of the piece, with its head.
    pub bytes: usize,
}

/// A value: a number of eight bytes, or pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Number(u64),
    Pieces(Vec<Piece>),
}

/// A key: its worker's number, and its own number among the worker's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub worker: u64,
    pub number: u64,
}

impl Key {
    /// Its name.
    pub fn name(self) -> Vec<u8> {
        format!("{}/{}", self.worker, self.number).into_bytes()
    }

    /// Whether its values are numbers.
    pub fn is_number(self) -> bool {
        self.number.is_multiple_of(8)
    }

    /// Whether its values may expire during the run.
    pub fn may_expire(self) -> bool {
        self.number % 8 == 1
    }

    /// The bytes of a content.
    pub fn bytes(self, content: &Content) -> Vec<u8> {
        match content {
            Content::Number(number) => number.to_le_bytes().into(),
            Content::Pieces(pieces) => pieces.iter().flat_map(|it| self.piece(*it)).collect(),
        }
    }

    /// The bytes of a piece: whose it is, its serial number, its length, and filler that follows
    /// from the serial number.
    pub fn piece(self, piece: Piece) -> Vec<u8> {
        let whose = self.worker << 32 | self.number;
        let head = [whose, piece.serial, piece.bytes as u64].map(u64::to_le_bytes);
        let mut bytes = head.concat();
        let mut word = piece.serial ^ whose;
        while bytes.len() < piece.bytes {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(piece.bytes);
        bytes
    }

    /// The content of bytes, if they are whole and a value of this key.
    pub fn content(self, mut bytes: &[u8]) -> Option<Content> {
        if self.is_number() {
            return Some(Content::Number(u64::from_le_bytes(bytes.try_into().ok()?)));
        }
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
            let piece = Piece { serial: word(8)?, bytes: word(16)? as usize };
            if !(HEAD_BYTES..=bytes.len()).contains(&piece.bytes) {
                return None;
            }
            bytes = bytes.strip_prefix(&self.piece(piece)[..])?;
            pieces.push(piece);
        }
        (!pieces.is_empty()).then_some(Content::Pieces(pieces))
    }
}

/// The contents that a key may have.
#[derive(Clone, Debug)]
pub struct May {
    /// The contents of which it has one; `None` is no value.
    pub contents: Vec<Option<Content>>,
    /// The version of its value, if that is known.
    pub version: Option<Version>,
    /// A version that it had once and has no more.
    pub old_version: Option<Version>,
    /// The last version that was known.
    last_version: Option<Version>,
    /// Whether its value may vanish at any time.
    pub forgets: bool,
}

impl May {
    /// A key without a value.
    pub fn absent(forgets: bool) -> Self {
        let (version, old_version, last_version) = (None, None, None);
        Self { contents: vec![None], version, old_version, last_version, forgets }
    }

    /// Begins an operation that changes the content by `effect`, and returns the contents from
    /// before it. Until [`May::ended`] the key may have either.
    pub fn begins(
        &mut self,
        effect: &dyn Fn(&Option<Content>) -> Option<Content>,
    ) -> Vec<Option<Content>> {
        if self.forgets {
            self.add(None);
        }
        let before = self.contents.clone();
        before.iter().for_each(|content| self.add(effect(content)));
        self.version = None;
        before
    }

    /// The key certainly has one of these contents.
    pub fn ended(&mut self, contents: Vec<Option<Content>>, version: Option<Version>) {
        self.contents.clear();
        contents.into_iter().for_each(|content| self.add(content));
        self.version = version;
        if version.is_some() {
            let last = std::mem::replace(&mut self.last_version, version);
            self.old_version = last.filter(|_| last != version).or(self.old_version);
        }
    }

    /// A reader found this. Returns whether it may be so.
    pub fn is_found(&mut self, found: Option<Content>, version: Option<Version>) -> bool {
        let may = self.contents.contains(&found) || found.is_none() && self.forgets;
        if may {
            self.ended(vec![found], version);
        }
        may
    }

    fn add(&mut self, content: Option<Content>) {
        if !self.contents.contains(&content) {
            self.contents.push(content);
        }
    }
}
