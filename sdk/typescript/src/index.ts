/** Client of ron's services. Offline verification is in `ron-sdk/verify`, what needs Node in `ron-sdk/node`. */
export * from "./answers.js";
export { type Asked, ClientCredentials, type Credential, staticToken } from "./auth.js";
export { OutcomeUnknown, Refused, RonError, UnexpectedAnswer, Unreachable, VerificationError } from "./errors.js";
export { Answer, type Call, type Node, NotSent, type Transport, overFetch, overNodes, overUrls } from "./http.js";
export * from "./kms.js";
export * from "./passport.js";
export * from "./rewarder.js";
export {
  AMOUNT_MAX, type Burn, type Capture, type Details, type Hold, type Issue, type Item, type Operation, type Release, type Reverse,
  type Transfer,
} from "./operations.js";
export { type Options } from "./service.js";
export * from "./wallet.js";
