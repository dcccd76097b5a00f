//! Listening sockets that the service manager holds open while a service restarts and passes to it
//! at its start (`LISTEN_FDS`, as systemd's `.socket` units do). No other process can take their
//! ports in between, and callers wait in the backlog.

use std::net::SocketAddr;

use listenfd::ListenFd;
use ron_kernel::OsNet;
use ron_kernel::net::SharedListener;

use crate::error::StartError;

/// TCP sockets that were passed to the process and not yet taken.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(SocketAddr, SharedListener)>);

impl Inherited {
    /// The sockets passed to the process. This removes the variables of `LISTEN_FDS`, so it must be
    /// called before any thread is started; a second call finds nothing.
    pub fn from_env() -> Result<Self, StartError> {
        let mut given = ListenFd::from_env();
        let mut sockets = Vec::with_capacity(given.len());
        for at in 0..given.len() {
            let taken = given.take_tcp_listener(at).and_then(|socket| {
                let socket = socket.ok_or(std::io::ErrorKind::NotFound)?;
                Ok((socket.local_addr()?, OsNet::adopt(socket)?))
            });
            sockets.push(taken.map_err(|error| {
                StartError::io(
                    format!("socket {} of LISTEN_FDS cannot be taken over: {error}", at + 1),
                    "a .socket unit of this service lists the TCP addresses bind_addr and health_addr alone",
                )
            })?);
        }
        Ok(Self(sockets))
    }

    /// The socket that listens at this address, if there is one.
    pub(super) fn take(&mut self, addr: SocketAddr) -> Option<SharedListener> {
        let at = self.0.iter().position(|(held, _)| *held == addr)?;
        Some(self.0.swap_remove(at).1)
    }

    /// An error when a socket remains that the service does not serve: its callers would never be
    /// accepted.
    pub(super) fn none_left(&self, wanted: &str) -> Result<(), StartError> {
        let Some((held, _)) = self.0.first() else {
            return Ok(());
        };
        Err(StartError::io(
            format!("the service manager holds {held} for this service, which listens at {wanted}"),
            "make ListenStream= in the .socket unit and these keys agree",
        ))
    }
}

#[cfg(test)]
impl From<Vec<SharedListener>> for Inherited {
    fn from(sockets: Vec<SharedListener>) -> Self {
        let held = |socket: SharedListener| (socket.local_addr().unwrap(), socket);
        Self(sockets.into_iter().map(held).collect())
    }
}
