//! A line between two processes that a test can cut or stall, and a process that ends with the
//! test.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

/// The state of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    Open,
    /// Ends every connection, including new ones.
    Cut,
    /// Accepts connections and bytes, and delivers nothing.
    Stalled,
}

/// A socket in front of another.
pub struct Line {
    /// Base URL of the near end.
    pub url: String,
    way: Arc<AtomicU8>,
    open: Arc<Mutex<Vec<UnixStream>>>,
    _dir: TempDir,
}

impl Line {
    /// A line to the base URL of a socket.
    pub fn to(target: &str) -> Self {
        let target = target.trim_start_matches("unix:").to_owned();
        let dir = tempfile::tempdir().unwrap();
        let near_end = dir.path().join("line.sock");
        let listener = UnixListener::bind(&near_end).unwrap();
        let line = Self {
            url: format!("unix:{}", near_end.display()),
            _dir: dir,
            way: Arc::new(AtomicU8::new(Way::Open as u8)),
            open: Arc::default(),
        };
        let (way, open) = (line.way.clone(), line.open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = UnixStream::connect(&target) else {
                    continue;
                };
                // Under the lock, so that a cut either finds this connection or is seen here.
                let mut open = open.lock().unwrap();
                if way.load(Ordering::SeqCst) == Way::Cut as u8 {
                    continue; // dropped: the peer sees the end at once
                }
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    let way = way.clone();
                    std::thread::spawn(move || copy(from, into, &way));
                }
                open.extend([near, far]);
            }
        });
        line
    }

    /// Changes the state of the line.
    pub fn set(&self, way: Way) {
        self.way.store(way as u8, Ordering::SeqCst);
        if way == Way::Cut {
            for stream in self.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

fn copy(mut from: UnixStream, mut into: UnixStream, way: &AtomicU8) {
    let mut buffer = [0; 8192];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        while way.load(Ordering::SeqCst) == Way::Stalled as u8 {
            std::thread::sleep(Duration::from_millis(5));
        }
        if into.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}
