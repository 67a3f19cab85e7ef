//! Computing on values, beside the operations that all engines have.

use loch_fabric::Buf;

use crate::error::EngineError;
use crate::functions::Lambda;
use crate::operation::{Done, Operation, Outcome, Value};

/// What `read` makes of an outcome; `None` if there is no value.
fn of_value<T>(
    done: Done,
    read: impl FnOnce(Done) -> Result<T, EngineError>,
) -> Result<Option<T>, EngineError> {
    if done.outcome() == Outcome::Absent { Ok(None) } else { read(done).map(Some) }
}

fn scalar(done: Done) -> Result<u64, EngineError> {
    done.outcome().scalar()
}

fn updated(done: Done) -> Result<u64, EngineError> {
    match done.outcome() {
        Outcome::Updated(elements) => Ok(elements),
        other => Err(other.of_another_operation()),
    }
}

/// A client that can compute on values where they are (kv-direct §3.2, Table 1).
#[allow(async_fn_in_trait, reason = "a client is one thread's: its futures need not be sent")]
pub trait Compute {
    /// Executes an operation that computes. `buf` is filled with the elements that are returned.
    ///
    /// # Errors
    /// The errors of a PUT, [`EngineError::NotAVector`], [`EngineError::NoFunction`],
    /// [`EngineError::FunctionFailed`], [`EngineError::UnfitFunction`].
    async fn compute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
        buf: Buf,
    ) -> Result<Done, EngineError>;

    /// `update_scalar2scalar`: replaces the one element under `key` by the function's result for it
    /// and the operand. Returns the element before, in the low bits of a word. A key without a
    /// value counts as 0. The new value does not expire.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn update(&self, key: &[u8], lambda: Lambda) -> Result<u64, EngineError> {
        let computed = self.compute(key, Operation::Update(lambda), Buf::new()).await?;
        scalar(computed)
    }

    /// `update_scalar2vector`: replaces each element by the function's result for it and the
    /// operand. Returns the number of elements; `None` without a value.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn update_all(&self, key: &[u8], lambda: Lambda) -> Result<Option<u64>, EngineError> {
        let operation = Operation::UpdateAll { lambda, returns: false };
        of_value(self.compute(key, operation, Buf::new()).await?, updated)
    }

    /// As [`Compute::update_all`], but returns the elements before the update.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn update_all_returning(
        &self,
        key: &[u8],
        lambda: Lambda,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let operation = Operation::UpdateAll { lambda, returns: true };
        of_value(self.compute(key, operation, buf).await?, Done::into_vector)
    }

    /// `update_vector2vector`: replaces each element by the function's result for it and the
    /// operand of the same index. Returns the number of elements; `None` without a value.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn update_each(
        &self,
        key: &[u8],
        lambda: Lambda,
        operands: &[u8],
    ) -> Result<Option<u64>, EngineError> {
        let operation = Operation::UpdateEach { lambda, operands, returns: false };
        of_value(self.compute(key, operation, Buf::new()).await?, updated)
    }

    /// As [`Compute::update_each`], but returns the elements before the update.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn update_each_returning(
        &self,
        key: &[u8],
        lambda: Lambda,
        operands: &[u8],
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        let operation = Operation::UpdateEach { lambda, operands, returns: true };
        of_value(self.compute(key, operation, buf).await?, Done::into_vector)
    }

    /// The function's result over the operand and all elements, one after the other; `None` without
    /// a value.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn reduce(&self, key: &[u8], lambda: Lambda) -> Result<Option<u64>, EngineError> {
        of_value(self.compute(key, Operation::Reduce(lambda), Buf::new()).await?, scalar)
    }

    /// The elements for which the function says yes, in their order; `None` without a value.
    ///
    /// # Errors
    /// As [`Compute::compute`].
    async fn filter(
        &self,
        key: &[u8],
        lambda: Lambda,
        buf: Buf,
    ) -> Result<Option<Value>, EngineError> {
        of_value(self.compute(key, Operation::Filter(lambda), buf).await?, Done::into_vector)
    }
}
