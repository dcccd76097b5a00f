//! Blocks of IP addresses (CIDR), for the caveat that restricts where a token may be used.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use super::small_number;
use crate::ValueError;
use crate::values::string_value;

/// A block of IP addresses, `10.0.0.0/8` or `2001:db8::/32`; an address without prefix is a block
/// of one address. The host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock(IpNet);

impl IpBlock {
    /// True when the address is in the block. An IPv4-mapped IPv6 address is treated as IPv4.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(&addr.to_canonical())
    }
}

impl FromStr for IpBlock {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = |why| ValueError::new("IP block", why);
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (text, None),
        };
        // By the standard library and `small_number`, because IpNet's parser takes leading zeros.
        let addr: IpAddr = addr
            .parse()
            .map_err(|_| refuse("write it as address/prefix, as in 10.0.0.0/8"))?;
        let net = match prefix {
            None => IpNet::from(addr),
            Some(digits) => small_number(digits, 128)
                .and_then(|prefix| IpNet::new(addr, prefix as u8).ok())
                .ok_or_else(|| refuse("the prefix is 0 to 32 for IPv4, 0 to 128 for IPv6"))?,
        };
        if net.trunc() != net {
            return Err(refuse("bits after the prefix must be zero"));
        }
        Ok(Self(net))
    }
}

impl fmt::Display for IpBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

string_value!(IpBlock, "IP block", {
    "type": "string",
    "description": "a block of addresses, as 10.0.0.0/8 or 2001:db8::/32",
    "maxLength": 43
});

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_contain_their_addresses() {
        let check = |block: &str, addr: &str, inside: bool| {
            let block: IpBlock = block.parse().expect("a block");
            let addr: IpAddr = addr.parse().expect("an address");
            assert_eq!(block.contains(addr), inside, "{addr} in {block}");
        };
        check("10.0.0.0/8", "10.255.1.2", true);
        check("10.0.0.0/8", "11.0.0.0", false);
        check("10.0.0.0/8", "::ffff:10.1.1.1", true);
        check("10.0.0.0/8", "::10.1.1.1", false);
        check("0.0.0.0/0", "203.0.113.9", true);
        check("0.0.0.0/0", "2001:db8::1", false);
        check("192.0.2.7", "192.0.2.7", true);
        check("192.0.2.7/32", "192.0.2.6", false);
        check("::/0", "2001:db8::1", true);
        check("::/0", "192.0.2.7", false);
        check("2001:db8::/33", "2001:db8:7fff::1", true);
        check("2001:db8::/33", "2001:db8:8000::1", false);
        check("::1", "::1", true);
    }

    proptest! {
        #[test]
        fn membership_agrees_with_a_bit_by_bit_check(
            block in any::<u32>(), addr in any::<u32>(), shared in 0..=32_u32, prefix in 0..=32_u8,
        ) {
            // Both get a common prefix; random addresses would hardly ever be in the block.
            let keep = u32::MAX.checked_shl(32 - shared).unwrap_or(0);
            let addr = (block & keep) | (addr & !keep);
            let bit = |bits: u32, at: u8| bits >> (31 - at) & 1;
            let inside = (0..prefix).all(|at| bit(block, at) == bit(addr, at));
            let network = block & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            let block = IpBlock(IpNet::new(IpAddr::V4(network.into()), prefix).unwrap());
            prop_assert_eq!(block.contains(IpAddr::V4(addr.into())), inside);
            prop_assert_eq!(block.to_string().parse::<IpBlock>().unwrap(), block);
        }
    }
}
