//! A table's engine, over the backend that the cluster has. A match at the public surface; below it
//! everything is compiled for one engine and one backend.
//!
//! The engine `nessie` on shared memory is the short way. All others are boxed, and so are the
//! futures of their operations, so that its own are as small as if there were no others, and
//! compiled as if.

use std::pin::Pin;

use loch_engines::EngineError;
use loch_engines::nessie::{Client, published};
use loch_engines::registry::EngineId;
use loch_fabric::shm::ShmEndpoint;

use crate::Error;
#[cfg(feature = "verbs")]
use crate::remote::Remote;
use crate::served::client::Served;
use crate::served::net::Shm;
#[cfg(feature = "verbs")]
use crate::served::net::Verbs;

/// The engine of a table.
#[allow(clippy::large_enum_variant, reason = "the short way is not boxed")]
pub(crate) enum Backend {
    /// A client of nessie, and all memory of the cluster is mapped.
    Shm(Client<ShmEndpoint>),
    /// A client of nessie by the published protocol, and all memory of the cluster is mapped.
    Published(Box<published::Client<ShmEndpoint>>),
    /// Workers take part, and all memory of the cluster is mapped.
    Served(Box<Served<Shm>>),
    /// A client of nessie. The home node's memory is mapped; that of others is reached by
    /// connections, which may break.
    #[cfg(feature = "verbs")]
    Verbs(Box<Remote>),
    /// Workers take part, and memory is as for [`Backend::Verbs`].
    #[cfg(feature = "verbs")]
    ServedAfar(Box<Served<Verbs>>),
}

impl Backend {
    /// The name of the table's engine. Who only reads a table of nessie does so as its client.
    pub fn engine_name(&self) -> &'static str {
        match self {
            Self::Served(served) => served.engine_name(),
            #[cfg(feature = "verbs")]
            Self::ServedAfar(served) => served.engine_name(),
            _ => EngineId::Nessie.name(),
        }
    }

    /// What this backend knows better about an error than the engine.
    pub fn explain(&self, error: &EngineError) -> Option<Error> {
        match (self, error) {
            (Self::Served(served), error) => served.explain(error),
            #[cfg(feature = "verbs")]
            (Self::ServedAfar(served), error) => served.explain_network(error),
            #[cfg(feature = "verbs")]
            (Self::Verbs(remote), EngineError::Fabric(error)) => remote.explain(*error),
            _ => None,
        }
    }
}

/// A future whose state and code are apart from those of the one that awaits it.
#[inline(never)]
pub(crate) fn apart<'a, T>(work: impl Future<Output = T> + 'a) -> Apart<'a, T> {
    Box::pin(work)
}

/// See [`apart`].
pub(crate) type Apart<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An expression with a client of nessie, of either protocol and on whatever backend it is, or one
/// with the client of a table that workers serve.
macro_rules! with_client {
    ($table:expr, $client:ident => $with:expr, $served:ident => $or:expr) => {
        match $table.backend() {
            $crate::backend::Backend::Shm($client) => $with,
            $crate::backend::Backend::Published($client) => $with,
            $crate::backend::Backend::Served($served) => $or,
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::ServedAfar($served) => $or,
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::Verbs(remote) => {
                let $client = remote.client();
                $with
            }
        }
    };
}
pub(crate) use with_client;

/// Awaits an operation of the engine, whichever it is, and makes `$then` of what it came to. Where
/// connections may break it is begun again, after one that it found broken was made again: such an
/// error says that nothing was changed. Of an operation that changes nothing (`read`) no outcome is
/// unknown. Those that change something are not for who only reads.
macro_rules! operate {
    (read $table:expr, $client:ident => $operation:expr, $then:expr) => {
        $crate::backend::operate!(
            @ $table, $client => $operation, $then, $crate::remote::of_read,
            $operation.await.map($then)
        )
    };
    ($table:expr, $client:ident => $operation:expr, $then:expr) => {
        $crate::backend::operate!(
            @ $table, $client => $operation, $then, std::convert::identity,
            Err(loch_engines::EngineError::ReadOnly)
        )
    };
    (
        @ $table:expr, $client:ident => $operation:expr, $then:expr, $meaning:path,
        $observed:expr
    ) => {
        match $table.backend() {
            $crate::backend::Backend::Shm($client) => $operation.await.map($then),
            $crate::backend::Backend::Published($client) => {
                let work = async { $operation.await.map($then) };
                $crate::backend::apart(work).await
            }
            $crate::backend::Backend::Served(served) => {
                let work = async {
                    $crate::served::client::with_engine!(
                        &served.engine,
                        $client => $operation.await.map($then),
                        $client => { let _ = $client; $observed }
                    )
                };
                $crate::backend::apart(work).await
            }
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::Verbs(remote) => {
                let work = async {
                    let mut attempts = remote.begin();
                    loop {
                        let $client = remote.client();
                        let done = $operation.await.map($then).map_err($meaning);
                        if !remote.goes_on(&mut attempts, done.as_ref().err()).await {
                            break done;
                        }
                    }
                };
                $crate::backend::apart(work).await
            }
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::ServedAfar(served) => {
                let work = async {
                    let mut attempts = served.begin();
                    loop {
                        let done = $crate::served::client::with_engine!(
                            &served.engine,
                            $client => $operation.await.map($then),
                            $client => { let _ = $client; $observed }
                        );
                        let done = done.map_err($meaning);
                        if !served.goes_on(&mut attempts, done.as_ref().err()).await {
                            break done;
                        }
                    }
                };
                $crate::backend::apart(work).await
            }
        }
    };
}
pub(crate) use operate;

/// As [`operate`], of an operation that is computed where the value is: only a client of kv-direct
/// has such. `$what` names it in the error of other engines' tables.
macro_rules! compute {
    (read $table:expr, $what:expr, $client:ident => $operation:expr) => {
        $crate::backend::compute!(@ $table, $what, $client => $operation, $crate::remote::of_read)
    };
    ($table:expr, $what:expr, $client:ident => $operation:expr) => {
        $crate::backend::compute!(@ $table, $what, $client => $operation, std::convert::identity)
    };
    (@ $table:expr, $what:expr, $client:ident => $operation:expr, $meaning:path) => {
        match $table.backend() {
            $crate::backend::Backend::Served(served) => match served.kv_direct() {
                Some($client) => {
                    let done = $crate::backend::apart($operation).await;
                    done.map_err(|error| $table.error(error))
                }
                None => Err($table.other_engine($what)),
            },
            #[cfg(feature = "verbs")]
            $crate::backend::Backend::ServedAfar(served) => match served.kv_direct() {
                Some($client) => {
                    let work = async {
                        let mut attempts = served.begin();
                        loop {
                            let done = $operation.await.map_err($meaning);
                            if !served.goes_on(&mut attempts, done.as_ref().err()).await {
                                break done;
                            }
                        }
                    };
                    let done = $crate::backend::apart(work).await;
                    done.map_err(|error| $table.error(error))
                }
                None => Err($table.other_engine($what)),
            },
            _ => Err($table.other_engine($what)),
        }
    };
}
pub(crate) use compute;
