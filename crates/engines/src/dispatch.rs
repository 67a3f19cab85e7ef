//! Futures of one type for operations of several engines.

use std::pin::Pin;

use futures_util::future::Either;

/// The future of an operation: awaited in place where every nanosecond counts, boxed elsewhere, so
/// that the state of the one in place is as small as if there were no others.
pub type Dispatched<'a, F, T> = Either<F, Boxed<'a, T>>;

/// A future in memory of its own.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A future whose state and code are apart from those of the one that awaits it.
#[inline(never)]
pub fn boxed<'a, F, T>(work: impl Future<Output = T> + 'a) -> Dispatched<'a, F, T> {
    Either::Right(Box::pin(work))
}
