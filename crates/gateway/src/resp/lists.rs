//! MGET: GETs of any number of keys, whose answers go out part by part.

use super::{Session, strings, tell};
use crate::context::Context;
use crate::gets::{self, Keys};
use crate::output::Output;

impl Session {
    /// Answers an MGET, or the first part of it.
    pub(super) async fn get_list<'t>(
        &mut self,
        cx: &Context<'t>,
        keys: &[&[u8]],
        output: &mut Output<'t>,
    ) {
        self.reply(&mut output.bytes).array(keys.len());
        let mut answered = 0;
        while answered < keys.len() && output.is_open() {
            answered += self.get_some(cx, &keys[answered..], keys.len() - answered, output).await;
        }
        if answered < keys.len() {
            self.list = Keys::of(&keys[answered..]);
        }
    }

    /// Goes on with the answer to an MGET. Returns whether others may follow now.
    pub(super) async fn has_ended_list<'t>(
        &mut self,
        cx: &Context<'t>,
        output: &mut Output<'t>,
    ) -> bool {
        let mut list = std::mem::take(&mut self.list);
        while list.len() > 0 && output.is_open() {
            let keys = list.next(&self.batch);
            let answered = self.get_some(cx, &keys, list.len(), output).await;
            list.answered(answered);
        }
        if list.len() > 0 {
            self.list = list;
        }
        output.is_open()
    }

    /// Answers the first of these keys, or all that are left of the request, if it has failed.
    /// Returns how many.
    async fn get_some<'t>(
        &mut self,
        cx: &Context<'t>,
        keys: &[&[u8]],
        left: usize,
        output: &mut Output<'t>,
    ) -> usize {
        let format = strings::Values { resp: self.resp };
        match gets::answer(cx, keys, &mut self.batch, &format, output).await {
            Ok(answered) => answered,
            Err(failure) => {
                let failed = if failure.is_of_all() { left } else { 1 };
                for _ in 0..failed {
                    tell(cx, Err(failure.clone()), &mut self.reply(&mut output.bytes));
                }
                failed
            }
        }
    }
}
