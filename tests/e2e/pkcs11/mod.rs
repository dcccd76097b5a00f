//! Programs that speak PKCS#11, unmodified, with keys of a ron-kms process through `libron_pkcs11.so`. Every signature that they
//! get has its leaf in the audit log.

mod nginx;
mod openssl;
mod program;
mod ssh;
mod tool;

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ron_tests::{ok, pkcs11_module, ron_binary, until};

use crate::kms_custody::service::Service;

/// Labels of the objects, and the algorithms of the keys.
const KEYS: [(&str, &str); 3] = [
    ("ec", "ecdsa-p256"),
    ("p384", "ecdsa-p384"),
    ("rsa", "rsa-2048"),
];

/// A key service and a configuration of the module with one token, `acme/web`.
struct Rig {
    service: Service,
    /// Names of the keys, in the order of [`KEYS`].
    keys: Vec<String>,
}

impl Rig {
    fn start() -> Self {
        // As long as a busy machine may take.
        Self::start_with("", "timeout_ms = 60000")
    }

    /// The same, with lines of the service's configuration and of the module's. The caller is known by its user id.
    fn start_with(service: &str, module: &str) -> Self {
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        let caller = format!(
            "[[auth.principals]]\nname = \"web\"\ntenant = \"acme\"\nscopes = [\"kms:read\", \"kms:sign\", \"kms:wrap\"]\n\
             client_uids = [\"{own}\"]\nkey_prefixes = [\"acme/web/\"]\n"
        );
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("programs/client.sock");
        // An RSA key takes its time to make on a busy machine.
        let client = format!(
            "client_uds_path = \"{}\"\nrequest_deadline = \"1m\"\nsign_deadline = \"1m\"",
            socket.display()
        );
        let service = Service::start_in(dir, &format!("{client}\n{service}\n{caller}"));
        let keys: Vec<String> = KEYS.map(|(_, alg)| create(&service, alg, "prehash")).into();
        let rig = Self { service, keys };
        rig.configure(module);
        rig
    }

    fn configure(&self, more: &str) {
        let mut text = format!(
            "url = \"{}\"\n{more}\n[[token]]\ntenant = \"acme\"\npurpose = \"web\"\nlabel = \"web\"\n[token.keys]\n",
            self.url()
        );
        for ((label, _), key) in KEYS.iter().zip(&self.keys) {
            writeln!(text, "{label} = \"{key}\"").unwrap();
        }
        std::fs::write(self.at("pkcs11.toml"), text).unwrap();
        let engine = format!(
            "openssl_conf = main\n[main]\nengines = engines\n[engines]\npkcs11 = pkcs11\n[pkcs11]\nengine_id = pkcs11\n\
             MODULE_PATH = {}\ninit = 0\n[req]\ndistinguished_name = name\n[name]\n",
            pkcs11_module().display()
        );
        std::fs::write(self.at("openssl.cnf"), engine).unwrap();
    }

    /// The service's socket for local programs.
    fn url(&self) -> String {
        format!("unix:{}", self.at("programs/client.sock").display())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.service.dir.path().join(name)
    }

    /// A program that finds the module's configuration, in the directory of this rig.
    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.service.dir.path())
            .env("RON_PKCS11_CONFIG", self.at("pkcs11.toml"))
            .env("OPENSSL_CONF", self.at("openssl.cnf"));
        command
    }

    /// Runs a program that must succeed.
    fn run(&self, program: &str, args: &[&str]) -> String {
        ok(&self.output(program, args))
    }

    fn output(&self, program: &str, args: &[&str]) -> Output {
        let output = self.program(program).args(args).output();
        output.unwrap_or_else(|e| panic!("{program} (see scripts/setup.sh): {e}"))
    }

    /// OpenSSL as everybody has it, without the engine.
    fn plain_openssl(&self, args: &[&str]) -> String {
        let mut openssl = self.program("openssl");
        ok(&openssl
            .args(args)
            .env("OPENSSL_CONF", "/dev/null")
            .output()
            .unwrap())
    }

    /// The URI of an object.
    fn uri(label: &str, kind: &str) -> String {
        format!("pkcs11:token=web;object={label};type={kind}")
    }

    /// `CKA_ID` of a key as hex digits: its UUID.
    fn id(&self, label: &str) -> String {
        let uuid = self.key(label).rsplit('/').next().unwrap();
        uuid.replace('-', "")
    }

    fn key(&self, label: &str) -> &str {
        let at = KEYS.iter().position(|(known, _)| *known == label);
        &self.keys[at.unwrap()]
    }

    /// Signatures of a key, as `ron audit stat` counts its leaves.
    fn signatures(&self, label: &str) -> u64 {
        let text = self.audit("stat");
        let line = text.lines().find(|line| line.ends_with(self.key(label)));
        line.map_or(0, |line| {
            line.split_whitespace().next().unwrap().parse().unwrap()
        })
    }

    /// `ron audit ...` on the log of the running service.
    fn audit(&self, what: &str) -> String {
        let url = format!("{}:/audit/v1", self.service.url);
        let vkey = self.service.get("/audit/v1/vkey");
        let mut ron = Command::new(ron_binary());
        ron.args(["audit", what, "--url", &url, "--token-file"])
            .arg(self.at("token"))
            .args(["--vkey", vkey.trim()]);
        ok(&ron.output().unwrap())
    }

    /// The log shows this number of signatures of a key, all of which this test has had made; the last ones wait for a checkpoint.
    fn logged(&self, label: &str, made: u64) {
        until("the leaves are under a checkpoint", || {
            let shown = self.signatures(label);
            assert!(shown <= made, "{shown} signatures of {label}, not {made}");
            shown == made
        });
    }
}

/// Makes a key of the token; its name.
fn create(service: &Service, alg: &str, payload: &str) -> String {
    let args = [
        "create",
        "--tenant",
        "acme",
        "--purpose",
        "web",
        "--alg",
        alg,
    ];
    let made = service.ron(&[&args[..], &["--payload", payload]].concat());
    ok(&made).trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
