//! ron-services: the list of the services, for programs that know all of them (`ron`, the tests). A
//! new service is one crate and one line here.

use ron_service::Descriptor;

/// All services in the order in which they are started; a data directory gives them ports in this
/// order. A drain goes through the list in the opposite direction.
pub const SERVICES: [Descriptor; 6] = [
    Descriptor::of::<ron_kms::RonKms>(),
    Descriptor::of::<svc_passport::SvcPassport>(),
    Descriptor::of::<ron_ledger::RonLedger>(),
    Descriptor::of::<svc_wallet::SvcWallet>(),
    Descriptor::of::<svc_rewarder::SvcRewarder>(),
    Descriptor::of::<svc_admin::SvcAdmin>(),
];

/// The names of [`SERVICES`], which are also the names of their binaries.
pub const NAMES: [&str; SERVICES.len()] = {
    let mut names = [""; SERVICES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = SERVICES[at].name();
        at += 1;
    }
    names
};

/// The service with this name.
pub fn find(name: &str) -> Option<&'static Descriptor> {
    const ALL: &[Descriptor] = &SERVICES;
    ALL.iter().find(|service| service.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_keys_are_sound() {
        for service in &SERVICES {
            let faults = ron_service::config::table_faults(&service.table.rows());
            assert_eq!(faults, [] as [String; 0], "{}", service.name());
        }
    }

    #[test]
    fn names_are_found_and_differ() {
        for (at, name) in NAMES.iter().enumerate() {
            let found = find(name).expect("a service of the list");
            assert_eq!(found.topology.service, *name);
            assert!(!NAMES[..at].contains(name), "{name} is listed twice");
        }
        assert!(find("ron").is_none());
    }
}
