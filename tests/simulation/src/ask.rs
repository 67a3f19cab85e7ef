//! An operation, as histories record it, asked of a client.

use loch_engines::operation::{Conditional, Expect, PutOptions, Value, Version};
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
            Answer::Found(found.map(|value| (tag_of(&value), value.version().as_u64())))
        }
        Ask::Put(tag) => Answer::Stored(client.put(key, &bytes_of(tag), options).await?.as_u64()),
        Ask::PutIfAbsent(tag) => {
            conditional(client.put_if(key, &bytes_of(tag), Expect::Absent, options).await?)
        }
        Ask::PutIfVersion { version, value } => {
            let expect = Expect::Version(Version::from_u64(version));
            conditional(client.put_if(key, &bytes_of(value), expect, options).await?)
        }
        Ask::Append(tag) => Answer::Stored(client.append(key, &bytes_of(tag)).await?.as_u64()),
        // Every other one returns the value: by its tag, of which either half counts.
        Ask::Touch(tag) if (tag ^ tag >> 32) & 1 == 0 => {
            let touched = client.touch(key, options).await?;
            touched.map_or(Answer::Refused(None), |it| Answer::Stored(it.as_u64()))
        }
        Ask::Touch(_) => {
            let found = client.get_and_touch(key, options, Buf::new()).await?;
            Answer::Found(found.map(|value| (tag_of(&value), value.version().as_u64())))
        }
        Ask::Delete => Answer::Deleted(client.delete(key).await?),
        Ask::DeleteIfVersion(version) => {
            Answer::Deleted(client.delete_if(key, Version::from_u64(version)).await?)
        }
        Ask::Add(add) => Answer::Before(client.fetch_add(key, add).await?),
        Ask::Update(_) | Ask::Expire(_) | Ask::Forget => unreachable!("not every client has them"),
    })
}

fn conditional(told: Conditional) -> Answer {
    match told {
        Conditional::Done(version) => Answer::Stored(version.as_u64()),
        Conditional::Refused(version) => Answer::Refused(version.map(Version::as_u64)),
    }
}
