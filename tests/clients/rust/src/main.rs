//! Rust's client of Redis, with a gateway: redis-rs.
//!
//! The arguments are the gateway's addresses and the password.

#![forbid(unsafe_code)]

use redis::{Commands, RedisResult};

fn main() -> RedisResult<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let client = redis::Client::open(format!("redis://:{}@{}/", arguments[3], arguments[1]))?;
    let mut redis = client.get_connection()?;
    redis::cmd("FLUSHALL").exec(&mut redis)?;
    let () = redis.set_ex("k", "v", 100)?;
    assert_eq!(redis.get::<_, String>("k")?, "v");
    assert!(redis.ttl::<_, i64>("k")? > 90);
    assert!(!redis.set_nx::<_, _, bool>("k", "w")?);
    assert_eq!(redis.incr::<_, _, i64>("n", 42)?, 42);
    assert_eq!(redis.append::<_, _, i64>("s", "abc")?, 3);
    let found: Vec<Option<String>> = redis.mget(&["k", "none"])?;
    assert_eq!(found, [Some("v".to_owned()), None]);
    let long = vec![7u8; 3 << 20];
    let () = redis.set("long", &long)?;
    assert_eq!(redis.get::<_, Vec<u8>>("long")?, long);
    let mut pipe = redis::pipe();
    (0..500).for_each(|i| _ = pipe.set(format!("p{i}"), i).ignore());
    let () = pipe.query(&mut redis)?;
    let after: (i64,) = redis::transaction(&mut redis, &["n"], |connection, pipe| {
        let now: i64 = connection.get("n")?;
        pipe.set("n", now + 1).ignore().get("n").query(connection)
    })?;
    assert_eq!(after, (43,));
    let keys: std::collections::HashSet<String> =
        redis.scan_match("p1*")?.collect::<RedisResult<_>>()?;
    assert_eq!(keys.len(), 111);
    assert_eq!(redis.del::<_, i64>(&["k", "none"])?, 1);
    assert!(redis.lpush::<_, _, i64>("l", 1).is_err());
    println!("rust: redis-rs passed");
    Ok(())
}
