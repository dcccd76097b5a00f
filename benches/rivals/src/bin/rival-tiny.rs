//! The two routes on tiny_http: four threads take requests, one thread is behind the queue.

use std::io::Cursor;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Sender, TrySendError, bounded};
use ron_rivals::{HELLO, Order, QUEUE, address};
use tiny_http::{Header, Method, Request, Response, Server};

fn json(bytes: Vec<u8>) -> Response<Cursor<Vec<u8>>> {
    let header = Header::from_bytes("Content-Type", "application/json").expect("a good header");
    Response::from_data(bytes).with_header(header)
}

/// Responds; the client may have disconnected.
fn answer(request: Request, response: Response<Cursor<Vec<u8>>>) {
    let _ = request.respond(response);
}

fn serve(mut request: Request, jobs: &Sender<(Order, Request)>) {
    match (request.method(), request.url()) {
        (Method::Get, "/hello") => {
            let bytes = serde_json::to_vec(&HELLO).expect("it can be written");
            answer(request, json(bytes));
        }
        (Method::Post, "/echo") => {
            let mut body = Vec::with_capacity(request.body_length().unwrap_or(0).min(1 << 20));
            let read = request.as_reader().read_to_end(&mut body);
            let parsed = read.ok().and_then(|_| serde_json::from_slice(&body).ok());
            let Some(order) = parsed else {
                return answer(request, Response::from_data([]).with_status_code(400));
            };
            if let Err(TrySendError::Full((_, request)) | TrySendError::Disconnected((_, request))) =
                jobs.try_send((order, request))
            {
                answer(request, Response::from_data([]).with_status_code(429));
            }
        }
        _ => answer(request, Response::from_data([]).with_status_code(404)),
    }
}

fn main() {
    let server = Arc::new(Server::http(address()).expect("the address is free"));
    println!("{}", server.server_addr());
    let (jobs, todo) = bounded::<(Order, Request)>(QUEUE);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (server, jobs) = (server.clone(), jobs.clone());
            thread::spawn(move || {
                while let Ok(request) = server.recv() {
                    serve(request, &jobs);
                }
            })
        })
        .collect();
    for (order, request) in todo {
        let bytes = serde_json::to_vec(&order).expect("it can be written");
        answer(request, json(bytes));
    }
    for worker in workers {
        worker.join().expect("a worker ends with its server");
    }
}
