// An Iceberg REST catalog for tests: Iceberg's own handlers and its catalog in memory, over HTTP.
//
//     java -cp JARS IcebergRestServer.java WAREHOUSE TRANSACTIONS
//
// prints the port. TRANSACTIONS: whether transactions/commit is offered. /fail/N lets the next N
// commits fail after they were made, as a connection that breaks; /log gives the requests.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.BaseTransaction;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalogProperties;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.requests.CommitTransactionRequest;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.RegisterTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.JsonAutoDetect;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.PropertyAccessor;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.DeserializationFeature;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.PropertyNamingStrategies;

public class IcebergRestServer {
  static final ObjectMapper JSON = new ObjectMapper();
  static final InMemoryCatalog CATALOG = new InMemoryCatalog();
  static final List<String> LOG = new ArrayList<>();
  static boolean transactions;
  static int failing = 0;

  public static void main(String[] arguments) throws Exception {
    JSON.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);
    JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    JSON.setPropertyNamingStrategy(PropertyNamingStrategies.KEBAB_CASE);
    RESTSerializers.registerAll(JSON);
    transactions = Boolean.parseBoolean(arguments[1]);
    CATALOG.initialize("rest", Map.of("warehouse", arguments[0]));
    // Its files are files: the metadata that is registered is in the file system.
    Field io = InMemoryCatalog.class.getDeclaredField("io");
    io.setAccessible(true);
    io.set(CATALOG, new HadoopFileIO(new org.apache.hadoop.conf.Configuration()));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext("/", IcebergRestServer::handle);
    server.start();
    System.out.println(server.getAddress().getPort());
    System.in.read();
    System.exit(0);
  }

  static synchronized void handle(HttpExchange exchange) throws IOException {
    String method = exchange.getRequestMethod();
    String path = exchange.getRequestURI().getRawPath();
    byte[] body = exchange.getRequestBody().readAllBytes();
    LOG.add(method + " " + path);
    try {
      Object answer = answer(method, path, body);
      if (failing > 0 && method.equals("POST") && !path.contains("register")) {
        failing--;
        exchange.close();
        return;
      }
      send(exchange, answer == null ? 204 : 200, answer);
    } catch (Exception error) {
      error(exchange, error);
    }
  }

  static Object answer(String method, String path, byte[] body) throws Exception {
    String[] parts = path.split("/");
    if (path.startsWith("/fail/")) {
      LOG.clear();
      failing = Integer.parseInt(parts[2]);
      return Map.of();
    }
    if (path.equals("/log")) {
      List<String> log = new ArrayList<>(LOG.subList(0, LOG.size() - 1));
      LOG.clear();
      return Map.of("log", log);
    }
    if (path.equals("/v1/config")) {
      return config();
    }
    if (path.equals("/v1/p/transactions/commit") && transactions) {
      commit(JSON.readValue(body, CommitTransactionRequest.class));
      return null;
    }
    if (path.equals("/v1/p/namespaces") && method.equals("POST")) {
      return CatalogHandlers.createNamespace(
          CATALOG, JSON.readValue(body, CreateNamespaceRequest.class));
    }
    if (parts.length < 5 || !parts[3].equals("namespaces")) {
      throw new UnsupportedOperationException(method + " " + path);
    }
    Namespace namespace = Namespace.of(parts[4]);
    if (parts.length == 5) {
      return CatalogHandlers.loadNamespace(CATALOG, namespace);
    }
    if (parts[5].equals("register")) {
      return CatalogHandlers.registerTable(
          CATALOG, namespace, JSON.readValue(body, RegisterTableRequest.class));
    }
    if (parts.length == 6) {
      return CatalogHandlers.listTables(CATALOG, namespace);
    }
    TableIdentifier table = TableIdentifier.of(namespace, parts[6]);
    switch (method) {
      case "GET":
        return CatalogHandlers.loadTable(CATALOG, table, RESTCatalogProperties.SnapshotMode.ALL);
      case "POST":
        return CatalogHandlers.updateTable(
            CATALOG, table, JSON.readValue(body, UpdateTableRequest.class));
      case "HEAD":
        CatalogHandlers.loadTable(CATALOG, table, RESTCatalogProperties.SnapshotMode.REFS);
        return null;
      case "DELETE":
        CatalogHandlers.dropTable(CATALOG, table);
        return null;
      default:
        throw new UnsupportedOperationException(method);
    }
  }

  static Object config() {
    List<String> endpoints = new ArrayList<>(List.of(
        "GET /v1/{prefix}/namespaces/{namespace}",
        "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "GET /v1/{prefix}/namespaces/{namespace}/tables",
        "POST /v1/{prefix}/namespaces",
        "POST /v1/{prefix}/namespaces/{namespace}/register",
        "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
        "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}"));
    if (transactions) {
      endpoints.add("POST /v1/{prefix}/transactions/commit");
    }
    return Map.of(
        "defaults", Map.of(), "overrides", Map.of("prefix", "p"), "endpoints", endpoints);
  }

  // As Iceberg's own RESTCatalogAdapter does it: all are validated before the first is committed.
  static void commit(CommitTransactionRequest request) throws Exception {
    Method handler = CatalogHandlers.class.getDeclaredMethod(
        "commit", TableOperations.class, UpdateTableRequest.class);
    handler.setAccessible(true);
    List<Transaction> prepared = new ArrayList<>();
    for (UpdateTableRequest change : request.tableChanges()) {
      BaseTable table = (BaseTable) CATALOG.loadTable(change.identifier());
      Transaction transaction =
          Transactions.newTransaction(change.identifier().toString(), table.operations());
      prepared.add(transaction);
      TableOperations operations =
          ((BaseTransaction.TransactionTable) transaction.table()).operations();
      try {
        handler.invoke(null, operations, change);
      } catch (java.lang.reflect.InvocationTargetException error) {
        throw (Exception) error.getCause();
      }
    }
    prepared.forEach(Transaction::commitTransaction);
  }

  static void error(HttpExchange exchange, Exception error) throws IOException {
    int status = 500;
    if (error instanceof NoSuchTableException || error instanceof NoSuchNamespaceException) {
      status = 404;
    } else if (error instanceof CommitFailedException || error instanceof AlreadyExistsException) {
      status = 409;
    } else if (error instanceof UnsupportedOperationException) {
      status = 406;
    } else if (error instanceof IllegalArgumentException
        || error instanceof org.apache.iceberg.exceptions.ValidationException) {
      status = 400;
    } else {
      error.printStackTrace();
    }
    send(exchange, status, Map.of("error", Map.of(
        "message", String.valueOf(error.getMessage()),
        "type", error.getClass().getSimpleName(),
        "code", status)));
  }

  static void send(HttpExchange exchange, int status, Object answer) throws IOException {
    byte[] content = answer == null
        ? new byte[0]
        : JSON.writeValueAsString(answer).getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(status, content.length == 0 ? -1 : content.length);
    exchange.getResponseBody().write(content);
    exchange.close();
  }
}
