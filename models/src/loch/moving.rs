//! Moving an entry from one candidate to another, and completing or undoing moves of others.
//! Production: `migrate.rs`.
//!
//! `word` is the moved entry's word as it will be shown at the destination; F and C follow from it.

use super::mutation::Mutation;
use super::state::At;
use super::turn::Turn;
use super::word::{HOPS_MAX, Kind, Word};
use crate::script::Op;

impl Turn<'_> {
    fn frozen(&mut self) -> Word {
        let (word, to) = (self.me().word, self.me().to);
        word.with(Kind::Frozen, word.hop(), to)
    }

    fn copy(&mut self) -> Word {
        let (word, from) = (self.me().word, self.me().from);
        word.with(Kind::Copy, word.hop(), from)
    }

    /// READs the slot to be moved.
    pub fn move_source(&mut self) {
        let Op::Move(from, to) = self.op else { unreachable!("only moves begin here") };
        let word = self.state.slots[from as usize];
        self.story.say(|| format!("READ slot {from}: {word}"));
        let key = word.key();
        let movable = word.kind() == Kind::Visible && word.hop() < HOPS_MAX;
        let (from, to) = (self.setup.candidate_at(key, from), self.setup.candidate_at(key, to));
        let (Some(from), Some(to), true) = (from, to, movable) else {
            self.done();
            return;
        };
        let late = self.setup.lacks(Mutation::DestinationReadLate);
        let me = self.me();
        (me.key, me.from, me.to) = (key, from, to);
        me.words[from as usize] = word;
        me.word = word.with(Kind::Visible, word.hop() + 1, 0);
        me.at = if late { At::Freeze } else { At::MoveDestination };
    }

    /// READs the destination before the source is frozen: if it were read only afterwards, a PUT of
    /// the key that came and went in between would go unnoticed.
    pub fn move_destination(&mut self) {
        let to = self.me().to;
        let free = self.read(to);
        let late = self.setup.lacks(Mutation::DestinationReadLate);
        if free.is_empty() {
            self.me().words[to as usize] = free;
            self.me().at = if late { At::PlaceCopy } else { At::Freeze };
        } else if late {
            self.me().at = At::TakeBack;
        } else {
            self.done();
        }
    }

    /// CASes V to F.
    pub fn freeze(&mut self) {
        let (from, frozen) = (self.me().from, self.frozen());
        let shown = self.me().words[from as usize];
        let late = self.setup.lacks(Mutation::DestinationReadLate);
        if self.cas(from, shown, frozen, "freeze") {
            self.me().words[from as usize] = Word::UNKNOWN;
            self.me().at = if late { At::MoveDestination } else { At::PlaceCopy };
        } else {
            self.done();
        }
    }

    /// CASes the free destination to C.
    pub fn place_copy(&mut self) {
        let (to, copy) = (self.me().to, self.copy());
        let free = self.me().words[to as usize];
        self.me().words[to as usize] = Word::UNKNOWN;
        if self.cas(to, free, copy, "copy") {
            self.begin_scan();
        } else {
            self.me().at = At::TakeBack;
        }
    }

    /// CASes F back to V.
    pub fn take_back(&mut self) {
        let (from, frozen, shown) = (self.me().from, self.frozen(), self.me().word);
        self.cas(from, frozen, shown, "take back");
        self.done();
    }

    fn begin_scan(&mut self) {
        let me = self.me();
        (me.seen, me.at) = (1 << me.from | 1 << me.to, At::Scan);
        if self.saw_all() {
            self.settle_scan();
        }
    }

    /// READs another candidate, after the copy is in place.
    pub fn scan(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        self.keep_obstacle(choice, word);
        if self.saw_all() {
            self.settle_scan();
        }
        true
    }

    /// A tentative insert of the key may have seen the value in neither slot, so it must go; and a
    /// free home must get another tag, for the same reason.
    fn keep_obstacle(&mut self, candidate: u8, word: Word) {
        let key = self.me().key;
        let tentative =
            word.is_tentative_of(key) && !self.setup.lacks(Mutation::MoveSparesTentative);
        let home = candidate == 0
            && word.is_empty()
            && self.setup.home_insert
            && !self.setup.lacks(Mutation::MoveKeepsHomeTag);
        let kept = if tentative || home { word } else { Word::UNKNOWN };
        self.me().words[candidate as usize] = kept;
    }

    fn settle_scan(&mut self) {
        let words = self.me().words;
        let known = |c: &u8| words[*c as usize] != Word::UNKNOWN;
        let finish_first = self.setup.lacks(Mutation::FinishedBeforeDropped);
        let me = self.me();
        if let Some(candidate) = (0..words.len() as u8).find(known) {
            (me.slot, me.at) = (candidate, At::ScanClear);
        } else {
            let next = if finish_first { At::Finish } else { At::Drop };
            (me.slot, me.seen, me.at) = (0, 0, next);
        }
    }

    /// CASes the obstacle to EMPTY.
    pub fn scan_clear(&mut self) {
        let candidate = self.me().slot;
        let word = self.me().words[candidate as usize];
        let why = if word.is_empty() { "retag home" } else { "remove insert" };
        self.me().words[candidate as usize] = Word::UNKNOWN;
        if self.clear(candidate, word, why) {
            self.settle_scan();
        } else {
            self.me().at = At::ScanAgain;
        }
    }

    /// READs a slot again that had changed.
    pub fn scan_again(&mut self) {
        let candidate = self.me().slot;
        let word = self.read(candidate);
        self.keep_obstacle(candidate, word);
        self.settle_scan();
    }

    /// CASes F to EMPTY: from here on the copy alone shows the value.
    pub fn drop_source(&mut self) {
        let (from, frozen) = (self.me().from, self.frozen());
        self.clear(from, frozen, "drop");
        if self.setup.lacks(Mutation::FinishedBeforeDropped) {
            self.end_move();
        } else {
            self.me().at = At::Finish;
        }
    }

    /// CASes C to V.
    pub fn finish_move(&mut self) {
        let (to, copy, shown) = (self.me().to, self.copy(), self.me().word);
        self.cas(to, copy, shown, "finish");
        if self.setup.lacks(Mutation::FinishedBeforeDropped) {
            self.me().at = At::Drop;
        } else {
            self.end_move();
        }
    }

    /// Ends a move, the client's own or another client's.
    fn end_move(&mut self) {
        if self.op.key().is_some() { self.restart() } else { self.done() }
    }

    /// Completes or undoes the move that left F or C in a candidate.
    pub fn help(&mut self, candidate: u8) {
        let me = self.me();
        let word = me.words[candidate as usize];
        me.forget_look();
        me.word = word.with(Kind::Visible, word.hop(), 0);
        (me.from, me.to, me.at) = match word.kind() {
            Kind::Frozen => (candidate, word.aux(), At::HelpFrozen),
            _ => (word.aux(), candidate, At::HelpCopy),
        };
        self.story.say(|| "meets a move".to_owned());
    }

    /// Met a C: READs the source.
    pub fn help_copy(&mut self) {
        let (from, frozen) = (self.me().from, self.frozen());
        if self.read(from) == frozen {
            self.begin_scan();
        } else {
            self.me().at = At::Finish;
        }
    }

    /// Met an F: READs the destination.
    pub fn help_frozen(&mut self) {
        let (to, copy) = (self.me().to, self.copy());
        let there = self.read(to);
        let retag = there.is_empty() && !self.setup.lacks(Mutation::UndoneMoveKeepsTag);
        if there == copy {
            self.begin_scan();
        } else if retag {
            self.me().words[to as usize] = there;
            self.me().at = At::HelpRetag;
        } else {
            self.me().at = At::HelpUndo;
        }
    }

    /// CASes the free destination to another EMPTY, so that the mover, if it is only slow, can no
    /// longer place its copy.
    pub fn help_retag(&mut self) {
        let to = self.me().to;
        let free = self.me().words[to as usize];
        self.me().words[to as usize] = Word::UNKNOWN;
        self.me().at =
            if self.clear(to, free, "retag destination") { At::HelpUndo } else { At::HelpFrozen };
    }

    /// CASes F to V.
    pub fn help_undo(&mut self) {
        let (from, frozen, shown) = (self.me().from, self.frozen(), self.me().word);
        self.cas(from, frozen, shown, "undo move");
        self.end_move();
    }

    /// READs a slot: completes or undoes a move, or removes a tentative insert, of any client.
    pub fn settle(&mut self) {
        let Op::Settle(slot) = self.op else { unreachable!("only this operation settles") };
        let word = self.state.slots[slot as usize];
        self.story.say(|| format!("READ slot {slot}: {word}"));
        let undecided = matches!(word.kind(), Kind::Tentative | Kind::Frozen | Kind::Copy);
        let candidate = self.setup.candidate_at(word.key(), slot).filter(|_| undecided);
        let Some(candidate) = candidate else {
            self.done();
            return;
        };
        let me = self.me();
        (me.key, me.slot, me.at) = (word.key(), candidate, At::SettleClear);
        me.words[candidate as usize] = word;
        if word.is_visible() {
            self.help(candidate);
        }
    }

    /// CASes a tentative word to EMPTY.
    pub fn settle_clear(&mut self) {
        let candidate = self.me().slot;
        let word = self.me().words[candidate as usize];
        self.clear(candidate, word, "settle");
        self.done();
    }
}
