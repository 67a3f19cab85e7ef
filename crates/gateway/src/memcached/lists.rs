//! `get`, `gets`, `gat` and `gats` of any number of keys, whose answers go out part by part.

use super::{Request, Session, tell, touches, values};
use crate::context::Context;
use crate::failure::Failure;
use crate::gets::{self, Keys};
use crate::output::Output;

/// The rest of a request with a list of keys.
#[derive(Debug)]
pub(super) struct List {
    keys: Keys,
    part: values::Part,
}

impl List {
    /// Bytes of memory that its keys take.
    pub fn bytes(&self) -> usize {
        self.keys.bytes()
    }
}

impl Session {
    /// Answers the first keys of these requests, all of which read only or all of which touch.
    /// Returns how many requests are executed; the answer to the last one may go on.
    pub(super) async fn get_all<'t>(
        &mut self,
        cx: &Context<'t>,
        requests: &[Request<'_>],
        output: &mut Output<'t>,
    ) -> usize {
        let values = values::Values::of(requests);
        let mut answered = 0;
        while output.is_open() && answered < values.keys.len() {
            let (rest, format) = (&values.keys[answered..], values.from(answered));
            answered += match self.get_some(cx, rest, &format, output).await {
                Ok(answered) => answered,
                // The error is the answer to the rest of the request, or of all of them.
                Err(failure) => {
                    let mut end = answered;
                    while end == answered || failure.is_of_all() && end < values.keys.len() {
                        tell(cx, failure.clone(), &mut output.bytes);
                        end = values.next_end(end);
                    }
                    end - answered
                }
            };
        }
        let (whole, rest) = values.whole(answered);
        self.list =
            rest.map(|part| List { keys: Keys::of(&values.keys[answered..part.end]), part });
        whole + usize::from(self.list.is_some())
    }

    /// Goes on with the answer to a request that is executed. Returns whether others may follow
    /// now.
    pub(super) async fn has_ended_list<'t>(
        &mut self,
        cx: &Context<'t>,
        output: &mut Output<'t>,
    ) -> bool {
        while let Some(mut list) = self.list.take_if(|_| output.is_open()) {
            let values =
                values::Values::rest(list.keys.next(&self.batch), list.keys.len(), list.part);
            let answered = self.get_some(cx, &values.keys, &values.from(0), output).await;
            match answered {
                Ok(answered) => list.keys.answered(answered),
                Err(failure) => {
                    tell(cx, failure, &mut output.bytes);
                    break;
                }
            }
            if list.keys.len() > 0 {
                self.list = Some(list);
            }
        }
        output.is_open()
    }

    /// Answers the first of these keys. Returns how many.
    async fn get_some<'t>(
        &mut self,
        cx: &Context<'t>,
        keys: &[&[u8]],
        format: &values::ValuesFrom<'_>,
        output: &mut Output<'t>,
    ) -> Result<usize, Failure> {
        match format.expires(0) {
            None => gets::answer(cx, keys, &mut self.batch, format, output).await,
            Some(_) => touches::answer(cx, keys, &mut self.batch, format, output).await,
        }
    }
}
