//! `/metrics`, for Prometheus.

use std::future::IntoFuture;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::sync::oneshot;

use crate::context::Shared;
use crate::metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of its own, in a thread of its own: it has nothing to do with the clients' connections.
pub(crate) struct Http {
    address: SocketAddr,
    /// The server ends when this is gone.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Starts the server. It listens when this returns.
    pub fn start(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (running, ended) = oneshot::channel();
        let pages = pages(Arc::clone(shared));
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::select! {
                served = axum::serve(listener, pages).into_future() => served,
                _ = ended => Ok(()),
            }
        };
        let run = move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "/metrics is not served any more");
            }
        };
        let thread = std::thread::Builder::new().name("loch-gateway-http".to_owned()).spawn(run)?;
        Ok(Self { address, running: Some(running), thread: Some(thread) })
    }

    /// Where it listens, with the port that the system has chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        drop(self.running.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of /metrics has panicked");
        }
    }
}

fn pages(shared: Arc<Shared>) -> Router {
    let metrics = move || {
        let text = metrics::text(&shared).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
        std::future::ready(text.map(|text| ([(CONTENT_TYPE, OPEN_METRICS)], text)))
    };
    Router::new().route("/metrics", get(metrics))
}
