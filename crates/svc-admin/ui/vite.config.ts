// Builds a fixed set of files: no hashes in names, no inlined assets, relative paths only, so that the
// committed output changes exactly when the sources do and works under any sub-path.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    sourcemap: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "app-[name].js",
        assetFileNames: (asset) => (asset.names?.some((n) => n.endsWith(".css")) ? "app.css" : "[name][extname]"),
      },
    },
  },
  server: { proxy: { "/api": process.env.SVC_ADMIN_URL ?? "http://127.0.0.1:7490" } },
});
