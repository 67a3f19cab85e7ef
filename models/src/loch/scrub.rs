//! Freeing an entry that is in use although no slot names it. Production: `scrub.rs`.
//!
//! `word` is the suspect: entry and generation, as a slot would name them.

use super::mutation::Mutation;
use super::state::At;
use super::turn::Turn;
use super::word::{Kind, Word};
use crate::script::Op;

impl Turn<'_> {
    /// Chooses an entry that is in use by its note and generation.
    pub fn scrub_pick(&mut self, choice: u8) -> bool {
        let entry = self.state.entries[choice as usize];
        if entry.free {
            let none = choice == 0 && self.state.entries.iter().all(|entry| entry.free);
            if none {
                self.story.say(|| "finds nothing in use".to_owned());
                self.done();
            }
            return none;
        }
        self.story.say(|| format!("looks for d{choice}"));
        let me = self.me();
        me.key = entry.key;
        me.word = Word::naming(Kind::Visible, choice, 0, entry.key);
        me.at = At::ScrubLook;
        true
    }

    /// READs the candidates. An entry that is shown is no suspect; for any other a grace period
    /// begins.
    pub fn scrub_look(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        if word.kind() == Kind::Visible && word.same_entry(self.me().word) {
            self.done();
        } else if self.saw_all() {
            self.me().seen = 0;
            self.me().at = At::ScrubEntry;
            self.me().waits_for = self.operations_under_way();
        }
        true
    }

    fn operations_under_way(&self) -> u8 {
        if self.setup.lacks(Mutation::NoGracePeriod) {
            return 0;
        }
        let busy = self.state.clients.iter().enumerate().filter(|(number, client)| {
            let op = self.setup.scripts.get(*number).and_then(|s| s.get(client.op as usize));
            let scrubs = op == Some(&Op::Scrub);
            *number != self.client && !scrubs && !matches!(client.at, At::Idle | At::Note)
        });
        busy.fold(0, |bits, (number, _)| bits | 1 << number)
    }

    /// When the grace period has passed: READs note and generation of the suspect.
    pub fn scrub_entry(&mut self) -> bool {
        if self.me().waits_for != 0 {
            return false;
        }
        let suspect = self.me().word;
        let entry = self.state.entries[suspect.entry() as usize];
        let same = !entry.free && entry.generation == suspect.generation();
        self.story.say(|| format!("READ note of d{}: same {same}", suspect.entry()));
        if same {
            self.me().at = At::ScrubLookAgain;
        } else {
            self.done();
        }
        true
    }

    /// READs the candidates again.
    pub fn scrub_look_again(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        self.me().words[choice as usize] = word;
        if !self.saw_all() {
            return true;
        }
        let (words, suspect) = (self.me().words, self.me().word);
        let names = |w: &Word| w.is_occupied() && w.same_entry(suspect);
        let Some(candidate) = words.iter().position(names) else {
            self.me().seen = 0;
            self.me().at = At::ScrubSecondLook;
            return true;
        };
        match words[candidate].kind() {
            Kind::Visible => self.done(),
            Kind::Tentative => {
                self.me().keep_only(candidate as u8);
                self.me().word = suspect;
                self.me().slot = candidate as u8;
                self.me().at = At::ScrubKill;
            }
            _ => self.help(candidate as u8),
        }
        true
    }

    /// READs the candidates a second time: only if nothing changed does no slot name it.
    pub fn scrub_second_look(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        if word != self.me().words[choice as usize] {
            self.look_over();
        } else if self.saw_all() {
            self.look_over();
            self.me().at = At::ScrubNote;
        }
        true
    }

    /// Forgets the look, not the suspect.
    fn look_over(&mut self) {
        let suspect = self.me().word;
        self.me().forget_look();
        self.me().word = suspect;
        self.me().at = At::ScrubEntry;
    }

    /// CASes the tentative word of an operation that has ended to EMPTY.
    pub fn scrub_kill(&mut self) {
        let candidate = self.me().slot;
        let word = self.me().words[candidate as usize];
        self.clear(candidate, word, "remove leftover");
        self.look_over();
    }

    /// WRITEs the note that the entry's last client did not write.
    pub fn scrub_note(&mut self) {
        let suspect = self.me().word;
        self.write_note(suspect);
        self.done();
    }
}
