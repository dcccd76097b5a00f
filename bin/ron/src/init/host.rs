//! `ron init --host`: a name by which other hosts reach this one, with the certificate without which nothing is served
//! beyond loopback.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use ron_http::{ServerTls, ServerTlsFiles, TlsIdentity, certificate_is_for};
use ron_services::NAMES;

use crate::fleet;
use crate::layout::{Layout, api_port};

/// The service that stays on loopback: with the default `auth.mode` it shows the fleet to every caller.
pub const CONSOLE: &str = "svc-admin";

// No doc comment: clap would take it for the description of the command.
#[derive(Args)]
pub struct HostArgs {
    /// Name or address by which other hosts reach this one, as ron.example.org or 10.1.0.7: the API ports of all
    /// services but the console serve TLS there, and services name themselves by it. On loopback alone when absent.
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    host: Option<String>,
    /// Certificate chain of the host, PEM.
    #[arg(long, value_name = "FILE", requires = "host")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM, readable by its owner only.
    #[arg(long, value_name = "FILE", requires = "host")]
    tls_key: Option<PathBuf>,
}

/// Where other hosts reach the services, and the certificate that they serve there.
pub struct PublicHost {
    name: String,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Parses `--host`.
fn host_name(text: &str) -> Result<String, String> {
    const WHY: &str = "which is no name or address of a host, as ron.example.org or 10.1.0.7, without scheme and port";
    if let Ok(ip) = text.parse::<IpAddr>() {
        return if ip.is_unspecified() || ip.is_multicast() {
            Err("which is no address that other hosts can call; give the host's own".to_owned())
        } else {
            Ok(ip.to_string())
        };
    }
    let is_label = |label: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && label.bytes().all(plain)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit());
    if text.len() > 253 || is_number || !text.split('.').all(is_label) {
        return Err(WHY.to_owned());
    }
    Ok(text.to_owned())
}

impl HostArgs {
    /// What the flags ask for; `None` without them. The files are read, so that nothing is made with a certificate that
    /// no client would accept.
    pub fn public(&self) -> Result<Option<PublicHost>, String> {
        let Some(name) = &self.host else {
            return Ok(None);
        };
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Err(format!(
                "--host opens the services to other hosts, where over plain http everybody between reads tokens and moves \
                 money: give the certificate of {name} with --tls-cert FILE and --tls-key FILE. Or leave --host out, have \
                 a proxy on this host end TLS (docs/nginx.md), and name that with --issuer https://{name}"
            ));
        };
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()));
        let (cert, key) = (absolute(cert)?, absolute(key)?);
        let identity = TlsIdentity {
            cert: cert.clone(),
            key: key.clone(),
        };
        let files = ServerTlsFiles {
            identity,
            client_ca: None,
        };
        ServerTls::load(files).map_err(|e| e.to_string())?;
        certificate_is_for(&cert, name).map_err(|e| e.to_string())?;
        let name = name.clone();
        Ok(Some(PublicHost { name, cert, key }))
    }
}

impl PublicHost {
    /// Where a service listens; a name may stand for any address of the host.
    pub fn bind(&self, port: u16) -> SocketAddr {
        let ip = self.name.parse().unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        SocketAddr::new(ip, port)
    }

    /// The base URL of a port.
    pub fn url(&self, port: u16) -> String {
        match self.name.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("https://[{ip}]:{port}"),
            _ => format!("https://{}:{port}", self.name),
        }
    }

    /// Existing configuration files are kept, so a host that they do not have is an error.
    pub fn is_in(&self, layout: &Layout, base_port: u16) -> Result<(), String> {
        for service in NAMES.into_iter().filter(|service| *service != CONSOLE) {
            let config = fleet::load(layout, service, &[])?;
            let (settings, port) = (config.chassis(), api_port(base_port, service));
            let named = settings
                .public_urls
                .iter()
                .any(|url| url.0 == self.url(port));
            let same = settings.bind_addr == self.bind(port)
                && settings.tls_enabled
                && settings.tls_cert.as_ref() == Some(&self.cert)
                && settings.tls_key.as_ref() == Some(&self.key);
            if !same || !named {
                return Err(format!(
                    "--host {} was not applied: {} is set up already, with {service} at {}. To change it, set bind_addr, \
                     public_url and tls in each {}/<service>/config.toml (docs/separate-processes.md), and give the issuer \
                     its new name with `ron issuer move`",
                    self.name,
                    layout.root.display(),
                    settings.bind_addr,
                    layout.root.display(),
                ));
            }
        }
        Ok(())
    }

    /// What `ron init` says of it.
    pub fn shown(&self, base_port: u16) -> String {
        let mut text = "other hosts reach, with TLS:".to_owned();
        for service in NAMES.into_iter().filter(|service| *service != CONSOLE) {
            let url = self.url(api_port(base_port, service));
            let _ = write!(text, "\n  {service:<13} {url}");
        }
        text + &format!(
            "\n{CONSOLE} and the health ports stay on loopback; before the console is opened, set its auth.mode = \"passport\""
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_or_an_address_and_nothing_else() {
        for good in [
            "ron.example.org",
            "ron",
            "10.1.0.7",
            "fd00::7",
            "r2-d2.example",
        ] {
            assert_eq!(host_name(good), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "https://ron.example.org",
            "ron.example.org:7440",
            "ron.example.org/x",
            "Ron.example.org",
            "-ron",
            "ron..org",
            "10.1.0",
            "10.1.0.256",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "a b",
        ] {
            assert!(host_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_bound_and_a_name_stands_for_all() {
        let check = |name: &str, bind: &str, url: &str| {
            let host = PublicHost {
                name: name.to_owned(),
                cert: PathBuf::new(),
                key: PathBuf::new(),
            };
            assert_eq!(host.bind(7440).to_string(), bind);
            assert_eq!(host.url(7440), url);
        };
        check(
            "ron.example.org",
            "0.0.0.0:7440",
            "https://ron.example.org:7440",
        );
        check("10.1.0.7", "10.1.0.7:7440", "https://10.1.0.7:7440");
        check("fd00::7", "[fd00::7]:7440", "https://[fd00::7]:7440");
    }
}
