//! The two routes on axum: the multi-thread runtime with two workers, one task behind the queue.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use ron_rivals::{HELLO, Order, QUEUE, address};
use tokio::sync::{mpsc, oneshot};

type Jobs = mpsc::Sender<(Order, oneshot::Sender<Order>)>;

async fn echo(State(jobs): State<Jobs>, Json(order): Json<Order>) -> Response {
    let (to, from) = oneshot::channel();
    if jobs.try_send((order, to)).is_err() {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    }
    match from.await {
        Ok(order) => Json(order).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn serve() -> std::io::Result<()> {
    let (jobs, mut todo) = mpsc::channel::<(Order, oneshot::Sender<Order>)>(QUEUE);
    tokio::spawn(async move {
        while let Some((order, to)) = todo.recv().await {
            let _ = to.send(order); // its client may be gone
        }
    });
    let app = Router::new()
        .route("/hello", get(|| async { Json(HELLO) }))
        .route("/echo", post(echo))
        .with_state(jobs);
    let listener = tokio::net::TcpListener::bind(address()).await?;
    println!("{}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app).await
}

fn main() -> std::io::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()?
        .block_on(serve())
}
