//! Exclusive access to the slots of the cache.
//!
//! # Invariants
//! 1. At most one operation holds a slot.
//! 2. Operations get a slot in the order in which they asked for it, so none starves.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Counters of changes, which slots share.
const CHANGES: usize = 1024;

/// The slots of a cache: one bit for each slot says whether it is held.
#[derive(Debug)]
pub struct Slots {
    held: Vec<Cell<u64>>,
    waiting: RefCell<Vec<Waiting>>,
    tickets: Cell<u64>,
    /// A counter goes up when one of its slots is taken.
    changes: Vec<Cell<u32>>,
}

#[derive(Debug)]
struct Waiting {
    slot: u32,
    ticket: u64,
    waker: Waker,
}

/// A slot is held as long as this lives.
#[derive(Debug)]
pub struct Held<'a> {
    slots: &'a Slots,
    slot: u32,
}

/// A moment in the life of a slot: see [`Slots::hold_since`].
#[derive(Clone, Copy, Debug)]
pub struct Moment(Option<u32>);

impl Slots {
    pub fn new(slots: u32) -> Self {
        Self {
            held: vec![Cell::new(0); slots.div_ceil(64) as usize],
            waiting: RefCell::default(),
            tickets: Cell::new(0),
            changes: vec![Cell::new(0); CHANGES],
        }
    }

    /// The present moment.
    pub fn now(&self, slot: u32) -> Moment {
        Moment((!self.is_held(slot)).then(|| self.change(slot).get()))
    }

    /// Holds a slot at once, if no operation has held it since that moment.
    pub fn hold_since(&self, slot: u32, moment: Moment) -> Option<Held<'_>> {
        let same = moment.0 == Some(self.change(slot).get());
        (same && !self.is_held(slot) && self.is_next(slot, u64::MAX)).then(|| self.take(slot))
    }

    /// Holds a slot as soon as it is this operation's turn.
    pub async fn hold(&self, slot: u32) -> Held<'_> {
        if !self.is_held(slot) && self.is_next(slot, u64::MAX) {
            return self.take(slot);
        }
        let ticket = self.tickets.get();
        self.tickets.set(ticket + 1);
        let place = Place { slots: self, slot, ticket };
        poll_fn(|context| place.poll(context)).await
    }

    fn change(&self, slot: u32) -> &Cell<u32> {
        &self.changes[slot as usize % CHANGES]
    }

    fn is_held(&self, slot: u32) -> bool {
        self.held[slot as usize / 64].get() & 1 << (slot % 64) != 0
    }

    fn take(&self, slot: u32) -> Held<'_> {
        let word = &self.held[slot as usize / 64];
        word.set(word.get() | 1 << (slot % 64));
        let change = self.change(slot);
        change.set(change.get().wrapping_add(1));
        Held { slots: self, slot }
    }

    /// Whether no operation with an earlier ticket waits for the slot.
    fn is_next(&self, slot: u32, ticket: u64) -> bool {
        !self.waiting.borrow().iter().any(|other| other.slot == slot && other.ticket < ticket)
    }

    /// Wakes the operation that is next to hold a slot.
    fn wake(&self, slot: u32) {
        let waiting = self.waiting.borrow();
        // Tickets are added in their order.
        let next = waiting.iter().find(|other| other.slot == slot);
        let waker = next.map(|other| other.waker.clone());
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let word = &self.slots.held[self.slot as usize / 64];
        word.set(word.get() & !(1 << (self.slot % 64)));
        self.slots.wake(self.slot);
    }
}

/// A place in the queue for a slot.
struct Place<'a> {
    slots: &'a Slots,
    slot: u32,
    ticket: u64,
}

impl<'a> Place<'a> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Held<'a>> {
        if !self.slots.is_held(self.slot) && self.slots.is_next(self.slot, self.ticket) {
            return Poll::Ready(self.slots.take(self.slot));
        }
        let mut waiting = self.slots.waiting.borrow_mut();
        match waiting.iter_mut().find(|own| own.ticket == self.ticket) {
            Some(own) => own.waker.clone_from(context.waker()),
            None => {
                let waker = context.waker().clone();
                waiting.push(Waiting { slot: self.slot, ticket: self.ticket, waker });
            }
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    /// The operation has the slot, or does not want it any more: the next one has to look.
    fn drop(&mut self) {
        self.slots.waiting.borrow_mut().retain(|own| own.ticket != self.ticket);
        if !self.slots.is_held(self.slot) {
            self.slots.wake(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[test]
    fn slots_are_held_one_after_the_other() {
        let slots = Slots::new(100);
        let mut context = Context::from_waker(Waker::noop());
        let first = slots.hold_since(70, slots.now(70)).unwrap();
        assert!(slots.hold_since(71, slots.now(71)).is_some(), "another slot");
        let (mut second, mut third) = (pin!(slots.hold(70)), pin!(slots.hold(70)));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut context).is_pending(), "it is the other's turn");
        assert!(slots.hold_since(70, slots.now(70)).is_none(), "nor is it anybody else's");
        let Poll::Ready(second) = second.as_mut().poll(&mut context) else { panic!("its turn") };
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(third.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn who_gives_up_is_passed_over() {
        let slots = Slots::new(1);
        let mut context = Context::from_waker(Waker::noop());
        let first = slots.hold_since(0, slots.now(0)).unwrap();
        let mut second = Box::pin(slots.hold(0));
        let mut third = pin!(slots.hold(0));
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(third.as_mut().poll(&mut context).is_pending());
        drop(first);
        drop(second);
        assert!(third.as_mut().poll(&mut context).is_ready());
        assert!(slots.waiting.borrow().is_empty());
    }

    #[test]
    fn a_slot_that_was_held_meanwhile_has_changed() {
        let slots = Slots::new(8);
        let before = slots.now(5);
        drop(slots.hold_since(5, slots.now(5)).unwrap());
        assert!(slots.hold_since(5, before).is_none());
        let held = slots.hold_since(5, slots.now(5)).unwrap();
        let during = slots.now(5);
        drop(held);
        assert!(slots.hold_since(5, during).is_none(), "it was held at that moment");
    }
}
