//! The client's half of the window: the numbers that are under way at each worker, and the reply
//! slots that are in use.
//!
//! Lanes that find no free number stand in a **queue**. Without the queue, a lane whose request was
//! answered would take the freed number for its next request, in the same poll. The waiting lanes
//! would get no number for as long as the others go on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::message::{NUMBER_BITS, Ticket};

/// The client's knowledge of one worker.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The incarnation that the client believes in; 0: no incarnation yet, so that the worker tells
    /// it.
    pub incarnation: Cell<u32>,
    /// Whether this incarnation has answered.
    pub heard: Cell<bool>,
    /// The number of the last request.
    last: Cell<u64>,
    /// For each number, by its remainder, whether its slot is taken.
    taken: RefCell<Vec<bool>>,
    /// The lanes that wait for a number, in the order in which they came.
    queue: RefCell<VecDeque<u64>>,
    /// The number of lanes that ever waited.
    came: Cell<u64>,
}

/// A lane's place in the queue, which it leaves when this is dropped.
pub(super) struct Place<'a> {
    line: &'a Line,
    came: u64,
}

impl Place<'_> {
    /// Whether it is this lane's turn.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.line.queue.borrow().front() == Some(&self.came)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queue = self.line.queue.borrow_mut();
        if queue.front() == Some(&self.came) {
            queue.pop_front();
        } else {
            queue.retain(|came| *came != self.came);
        }
    }
}

impl Line {
    pub fn new(window: u16) -> Self {
        Self { taken: RefCell::new(vec![false; usize::from(window)]), ..Self::default() }
    }

    /// Makes the client believe in an incarnation from now on.
    #[inline]
    pub fn believe(&self, incarnation: u32) {
        if self.incarnation.replace(incarnation) != incarnation {
            self.heard.set(false);
        }
    }

    /// Whether lanes wait for a number.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Whether the next number is free at once.
    #[inline]
    pub fn is_free(&self) -> bool {
        let taken = self.taken.borrow();
        let next = (self.last.get() + 1) % taken.len() as u64;
        !taken[next as usize] && !self.is_awaited()
    }

    /// Takes the last place in the queue.
    pub fn queue_up(&self) -> Place<'_> {
        let came = self.came.get() + 1;
        self.came.set(came);
        self.queue.borrow_mut().push_back(came);
        Place { line: self, came }
    }

    /// Takes the next number if its slot is free.
    #[inline]
    pub fn take(&self) -> Option<u64> {
        let number = self.last.get() + 1;
        assert!(number >> NUMBER_BITS == 0, "a session has {NUMBER_BITS} bits of requests");
        let mut taken = self.taken.borrow_mut();
        let slots = taken.len() as u64;
        let slot = &mut taken[(number % slots) as usize];
        if *slot {
            return None;
        }
        *slot = true;
        self.last.set(number);
        Some(number)
    }

    /// Frees the slot of a number: its request was answered, or no lane waits for the answer any
    /// more.
    #[inline]
    pub fn give_back(&self, number: u64) {
        let mut taken = self.taken.borrow_mut();
        let slots = taken.len() as u64;
        taken[(number % slots) as usize] = false;
    }
}

/// Reply slots that no lane waits for.
#[derive(Debug)]
pub(super) struct Replies {
    free: RefCell<Vec<u16>>,
    count: u16,
}

impl Replies {
    pub fn new(replies: u16) -> Self {
        Self { free: RefCell::new((0..replies).rev().collect()), count: replies }
    }

    /// The number of slots that are taken: one for each request under way.
    #[inline]
    pub fn taken(&self) -> u32 {
        u32::from(self.count) - self.free.borrow().len() as u32
    }

    #[inline]
    pub fn take(&self) -> Option<u16> {
        self.free.borrow_mut().pop()
    }

    #[inline]
    pub fn give_back(&self, reply: u16) {
        self.free.borrow_mut().push(reply);
    }
}

/// A request that was sent, and that nobody waits for now: another lane may go on with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    /// Its ticket, as it was sent last.
    pub ticket: Ticket,
    /// How often it was sent again.
    pub attempt: u32,
}

/// The parked requests of packets that lanes share.
#[derive(Debug, Default)]
pub(super) struct Parking {
    /// By the places of the packets.
    parked: RefCell<Vec<Option<Parked>>>,
    /// Those whose packets no lane holds any more, with their workers.
    orphans: RefCell<Vec<(u16, Parked)>>,
}

impl Parking {
    fn put(&self, place: usize, parked: Parked) {
        let mut all = self.parked.borrow_mut();
        if all.len() <= place {
            all.resize(place + 1, None);
        }
        all[place] = Some(parked);
    }

    /// The request of a packet, if there is one.
    pub fn get(&self, place: usize) -> Option<Parked> {
        *self.parked.borrow().get(place)?
    }

    fn take(&self, place: usize) -> Option<Parked> {
        self.parked.borrow_mut().get_mut(place)?.take()
    }

    /// No lane holds the packet of this place, which was for a worker, any more.
    pub fn leave(&self, place: usize, source: u16) {
        if let Some(parked) = self.take(place) {
            self.orphans.borrow_mut().push((source, parked));
        }
    }

    /// A request whose packet no lane holds any more, with its worker.
    #[inline]
    pub fn orphan(&self) -> Option<(u16, Parked)> {
        self.orphans.borrow_mut().pop()
    }
}

/// A number and a reply slot. Both are given back when this is dropped, also if the whole operation
/// is dropped, unless the request is to be parked then.
pub(super) struct UnderWay<'a> {
    line: &'a Line,
    replies: &'a Replies,
    pub number: u64,
    pub reply: u16,
    /// Where the request is parked, and stays if this is dropped now. It stands there, not here:
    /// this is a part of every operation's future.
    parks: Option<(&'a Parking, usize)>,
}

impl<'a> UnderWay<'a> {
    /// Takes a number and a reply slot, if both are free.
    #[inline]
    pub fn take(line: &'a Line, replies: &'a Replies) -> Option<Self> {
        let reply = replies.take()?;
        let Some(number) = line.take() else {
            replies.give_back(reply);
            return None;
        };
        Some(Self { line, replies, number, reply, parks: None })
    }

    /// Takes over the number and the reply slot of a parked request, which stays parked if it is at
    /// a place.
    pub fn adopt(
        line: &'a Line,
        replies: &'a Replies,
        parked: &Parked,
        parks: Option<(&'a Parking, usize)>,
    ) -> Self {
        let Ticket { number, reply, .. } = parked.ticket;
        Self { line, replies, number, reply, parks }
    }

    /// The request, if it is parked.
    #[inline]
    pub fn parked(&self) -> Option<Parked> {
        let (parking, place) = self.parks?;
        parking.get(place)
    }

    /// From now on the request is parked, and stays so if this is dropped.
    #[inline]
    pub fn arm(&mut self, parking: &'a Parking, place: Option<usize>, parked: Parked) {
        if let Some(place) = place {
            self.parks = Some((parking, place));
            parking.put(place, parked);
        }
    }

    /// From now on it is not.
    #[inline]
    pub fn disarm(&mut self) {
        if let Some((parking, place)) = self.parks.take() {
            parking.take(place);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.parks.is_some() {
            return;
        }
        self.line.give_back(self.number);
        self.replies.give_back(self.reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_holds_back_what_has_no_slot() {
        let (line, replies) = (Line::new(2), Replies::new(3));
        let first = UnderWay::take(&line, &replies).unwrap();
        let second = UnderWay::take(&line, &replies).unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        assert!(UnderWay::take(&line, &replies).is_none());
        // The slot of the third number is the first one's, whatever became of the second.
        drop(second);
        assert!(UnderWay::take(&line, &replies).is_none());
        drop(first);
        assert_eq!(UnderWay::take(&line, &replies).map(|u| u.number), Some(3));
    }

    #[test]
    fn who_came_first_is_first_and_who_gives_up_holds_nobody_back() {
        let line = Line::new(1);
        assert!(!line.is_awaited());
        let [first, second, third] = [0; 3].map(|_| line.queue_up());
        assert!(line.is_awaited() && first.is_first() && !second.is_first());
        drop(second);
        drop(first);
        assert!(third.is_first());
        drop(third);
        assert!(!line.is_awaited());
    }

    #[test]
    fn a_worker_that_started_anew_has_not_answered_yet() {
        let line = Line::new(1);
        line.believe(5);
        line.heard.set(true);
        line.believe(5);
        assert!(line.heard.get(), "it is the same");
        line.believe(6);
        assert_eq!((line.incarnation.get(), line.heard.get()), (6, false));
    }

    #[test]
    fn a_place_is_free_if_its_slot_is_and_nobody_waits_for_it() {
        for window in [1, 2, 3] {
            let line = Line::new(window);
            for number in 1..20 {
                assert!(line.is_free());
                let place = line.queue_up();
                assert!(!line.is_free(), "somebody waits");
                drop(place);
                assert_eq!(line.take(), Some(number));
                // The slot of the next number is the slot of the number one window before.
                assert_eq!(line.is_free(), number < u64::from(window));
                if !line.is_free() {
                    assert_eq!(line.take(), None);
                    line.give_back(number + 1 - u64::from(window));
                }
            }
        }
    }

    #[test]
    fn reply_slots_bound_what_is_under_way_at_all() {
        let (a, b, replies) = (Line::new(2), Line::new(2), Replies::new(1));
        let first = UnderWay::take(&a, &replies).unwrap();
        assert!(UnderWay::take(&b, &replies).is_none());
        drop(first);
        assert!(UnderWay::take(&b, &replies).is_some());
    }
}
