//! An operation, as histories record it, asked of a client.

use loch_engines::operation::{Conditional, Expect, PutOptions, Value};
use loch_engines::{EngineError, Kv};
use loch_fabric::Buf;
use loch_history::{Answer, Ask};

/// Asks `client` for an operation. `bytes_of` makes a value of a tag, and `tag_of` finds the tag of
/// a value.
///
/// # Errors
/// The client's.
pub async fn ask(
    client: &impl Kv,
    key: &[u8],
    ask: Ask,
    options: PutOptions,
    bytes_of: impl Fn(u64) -> Vec<u8>,
    tag_of: impl Fn(&Value) -> u64,
) -> Result<Answer, EngineError> {
    Ok(match ask {
        Ask::Get => {
            let found = client.get(key, Buf::new()).await?;
            Answer::Found(found.map(|value| (tag_of(&value), value.version())))
        }
        Ask::Put(tag) => Answer::Stored(client.put(key, &bytes_of(tag), options).await?),
        Ask::PutIfAbsent(tag) => {
            conditional(client.put_if(key, &bytes_of(tag), Expect::Absent, options).await?)
        }
        Ask::PutIfVersion { version, value } => {
            let expect = Expect::Version(version);
            conditional(client.put_if(key, &bytes_of(value), expect, options).await?)
        }
        Ask::Append(tag) => Answer::Stored(client.append(key, &bytes_of(tag)).await?),
        // Every other one returns the value: by its tag, of which either half counts.
        Ask::Touch(tag) if (tag ^ tag >> 32) & 1 == 0 => {
            let touched = client.touch(key, options).await?;
            touched.map_or(Answer::Refused(None), Answer::Stored)
        }
        Ask::Touch(_) => {
            let found = client.get_and_touch(key, options, Buf::new()).await?;
            Answer::Found(found.map(|value| (tag_of(&value), value.version())))
        }
        Ask::Delete => Answer::Deleted(client.delete(key).await?),
        Ask::DeleteIfVersion(version) => Answer::Deleted(client.delete_if(key, version).await?),
        Ask::Add(add) => Answer::Before(client.fetch_add(key, add).await?),
        Ask::Update(_) | Ask::Expire(_) | Ask::Forget => unreachable!("not every client has them"),
    })
}

fn conditional(told: Conditional) -> Answer {
    match told {
        Conditional::Done(version) => Answer::Stored(version),
        Conditional::Refused(version) => Answer::Refused(version),
    }
}
